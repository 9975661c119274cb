"""Every copy between devices, in the order it was made, and its bytes summed by link.

with virtual_gpus(2) as machine:
    torch.ones(1000).to("cuda:1")
    machine.traffic.by_link()      # {("cpu", "cuda:1"): 4000}
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload


@dataclass(frozen=True)
class Copy:
    """One copy: from device `source` to device `target`, `bytes` bytes long."""

    source: str
    target: str
    bytes: int


class Traffic(Sequence[Copy]):
    """A growing list of copies. Safe to read and add to from several threads."""

    def __init__(self, copies: Sequence[Copy] = ()) -> None:
        self._copies = list(copies)
        self._recorders: list[Traffic] = []

    def add(self, copy: Copy) -> None:
        """Append `copy`, here and in every recording that is running."""
        self._copies.append(copy)
        for recorder in tuple(self._recorders):
            recorder.add(copy)

    @property
    def total(self) -> int:
        """The bytes of all copies together."""
        return sum(copy.bytes for copy in self._copies)

    def by_link(self) -> dict[tuple[str, str], int]:
        """Bytes per (source, target), in the order in which the links were first used."""
        links: dict[tuple[str, str], int] = {}
        for copy in tuple(self._copies):
            link = (copy.source, copy.target)
            links[link] = links.get(link, 0) + copy.bytes
        return links

    def clear(self) -> None:
        """Forget all copies so far. Recordings that are running keep theirs."""
        self._copies.clear()

    @contextlib.contextmanager
    def record(self) -> Iterator[Traffic]:
        """Collect only the copies that are made inside the `with` block, by any thread."""
        recorder = Traffic()
        self._recorders.append(recorder)
        try:
            yield recorder
        finally:
            # By identity: two empty recordings are equal, and each must remove itself.
            self._recorders[:] = [other for other in self._recorders if other is not recorder]

    def __len__(self) -> int:
        return len(self._copies)

    @overload
    def __getitem__(self, index: int) -> Copy: ...
    @overload
    def __getitem__(self, index: slice) -> Traffic: ...
    def __getitem__(self, index: int | slice) -> Copy | Traffic:
        if isinstance(index, slice):
            return Traffic(self._copies[index])
        return self._copies[index]

    def __iter__(self) -> Iterator[Copy]:
        return iter(tuple(self._copies))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Traffic):
            return self._copies == other._copies
        return isinstance(other, list) and self._copies == other

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        return f"Traffic({len(self)} copies, {self.total:,} bytes)"
