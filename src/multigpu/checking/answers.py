"""What a run of a learner's code brings back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from multigpu.checking.ending import Ending
from multigpu.checking.wire import Unreadable, decode

if TYPE_CHECKING:
    from multigpu.ranks.trace import Trace

GARBLED = """\
came: after your code had run, its result could not be read. {error}
usually: the code changed something that belongs to Python or torch itself."""


SHOWN_LINES = 12  # of what the learner's code printed


@dataclass(frozen=True)
class Answer:
    """What came back from one run that ended cleanly.

    ``result`` is what the drive returned: plain data, Returned for tensors, Foreign for all else.
    ``where`` is the line from which the exercise's function returned last ("data_parallel.py:41").
    """

    result: Any
    where: str
    output: str
    seconds: float


@dataclass(frozen=True)
class RankAnswer:
    """What came back from one run on several ranks that all ended cleanly.

    ``results[r]`` is what the drive returned on rank r, ``wheres[r]`` the line from which the
    exercise's function returned last there, ``outputs[r]`` what rank r printed.  ``trace`` has
    every call of ``torch.distributed`` that any rank made.  ``memory[r]`` is the most that rank r's
    tensors held at once, in bytes, if the run had a limit.
    """

    results: list[Any]
    trace: "Trace"
    wheres: list[str]
    outputs: list[str]
    seconds: float
    memory: list[int] | None = None

    @property
    def where(self) -> str:
        """The line on rank 0."""
        return self.wheres[0]

    @property
    def output(self) -> str:
        """What all ranks printed, each line with its rank."""
        return by_rank(self.outputs)


def by_rank(outputs: Sequence[str]) -> str:
    """The first lines of rank 0, of rank 1, …, each with its rank before it."""
    most = max(2, SHOWN_LINES // max(1, len(outputs)))
    shown = []
    for rank, output in enumerate(outputs):
        lines = output.splitlines()
        if len(lines) > most:
            lines = [*lines[: most - 1], f"... and {len(lines) - most + 1} lines more"]
        shown += [f"rank {rank} | {line}" for line in lines]
    return "\n".join(shown)


def read(blob: bytes, ending: Ending) -> Any:
    """The value that a worker sent.  Raises Refused when it is no answer of our Encoder."""
    try:
        return decode(blob)
    except Unreadable as error:
        raise ending.refused("crash", "broke_checker", GARBLED.format(error=error)) from None
