"""What comes back from a run of ranks that went well."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

from multigpu.ranks.trace import Trace


class Results(Sequence[Any]):
    """One result per rank, in rank order: use it like a list.

    ``outputs``: what each rank printed.  ``backend``: "gloo on the CPU", for example.  ``memory``:
    each rank's peak in bytes, None if no limit was asked for.  ``seconds``: how long it took.
    """

    def __init__(
        self,
        values: Sequence[Any],
        *,
        frames: Sequence[Sequence[Mapping[str, Any]]],
        outputs: Sequence[str],
        backend: str,
        memory: Sequence[int] | None,
        seconds: float,
    ) -> None:
        self._values, self._frames = list(values), frames
        self.outputs, self.backend, self.seconds = list(outputs), backend, seconds
        self.memory = None if memory is None else list(memory)

    @cached_property
    def trace(self) -> Trace:
        """Every collective and message of every rank."""
        return Trace.from_frames(self._frames)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._values[index]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Results):
            return self._values == other._values
        return list(other) == self._values if isinstance(other, list | tuple) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._values)
