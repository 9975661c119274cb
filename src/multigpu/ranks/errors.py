"""The error of a run that goes wrong, and its names of ranks, places and exceptions."""

import copyreg
import linecache
import os
import re
import signal
import textwrap
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from multigpu.ranks.trace import Trace

_CELL = re.compile(r"ipykernel_\d+|<ipython-input")


def ranks_in_words(ranks: Iterable[int]) -> str:
    """`rank 2`, `ranks 0 and 1`, `ranks 0, 1 and 3`."""
    named = sorted(set(ranks))
    return f"{'rank' if len(named) == 1 else 'ranks'} {listed(named, most=None)}"


def listed(things: Iterable[object], *, most: int | None = 8) -> str:
    """`a`, `a and b`, `a, b and c`; `a, b and 7 more` when there are more than `most`."""
    words = [str(thing) for thing in things]
    if most is not None and len(words) > most:
        words = [*words[: most - 2], f"{len(words) - most + 2} more"]
    if len(words) < 2:
        return words[0] if words else "none"
    return f"{', '.join(words[:-1])} and {words[-1]}"


def ordinal(number: int) -> str:
    """`1st`, `2nd`, `3rd`, `4th`, `11th`."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{ending or 'th'}"


def counted(number: int, thing: str) -> str:
    """`1 all_reduce`, `4 all_reduces`, `3 batches`, `2 entries`, `1,024 broadcasts`."""
    if number == 1:
        return f"1 {thing}"
    if thing.endswith("y") and thing[-2] not in "aeiou":
        return f"{number:,} {thing[:-1]}ies"
    return f"{number:,} {thing}{'es' if thing.endswith(('s', 'ch', 'x')) else 's'}"


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 40` for one of those without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def place(file: str, line: int, function: str = "") -> str:
    """`train.py:41`; `notebook cell of train, line 3`, for the files of cells have no names."""
    if not _CELL.search(file):
        return f"{os.path.basename(file)}:{line}"
    name = function.rpartition(".")[2]
    return f"notebook cell{f' of {name}' if name.isidentifier() else ''}, line {line}"


Kind = Literal["exception", "exit", "mismatch", "deadlock", "no_progress"]


@dataclass(frozen=True)
class Finding:
    """Why a run cannot continue, or is not valid: plain data, so that it can be sent.

    `ranks` are the ranks at fault, `message` says what happened with rank, file and line, `usually`
    the usual cause. `details` has the list `ranks`, one entry per rank, which says what it was
    doing (`state`: waiting, computing, returned, raised or gone), and entries that depend on the
    kind.
    """

    kind: Kind
    ranks: tuple[int, ...]
    message: str
    usually: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        return f"{self.message}\nusually: {self.usually}" if self.usually else self.message

    def with_stacks(self, stacks: Mapping[int, str]) -> "Finding":
        """This finding with the stack of each busy rank below the message."""
        shown = [
            f"rank {rank} is here:\n{textwrap.indent(stack.strip(), '  ')}"
            for rank, stack in sorted(stacks.items())
            if stack.strip()
        ]
        return replace(self, message="\n".join([self.message, *shown]))


# As Python has it: a type can hide behind a metaclass of its own.
type_name: Callable[[type], str] = type.__dict__["__name__"].__get__

# These layers are above the reader's code on the stack (commands), or below it.
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAYERS = ("commands", "ranks", "devices")
PACKAGE_FOLDERS = tuple(os.path.join(PACKAGE, layer, "") for layer in LAYERS)
NOT_THEIRS = (
    *PACKAGE_FOLDERS,
    "site-packages",
    "dist-packages",
    "/multigpu/checking/",
    "<frozen",
)
SHOWN_FRAMES = 20
SHOWN_TEXT = 2000  # characters


class RankError(Exception):
    """A run of ranks went wrong.

    ``kind`` is "exception", "exit", "mismatch", "deadlock" or "no_progress"; ``ranks`` are those at
    fault. The text names rank, cause, file and line. ``trace`` and ``outputs`` are those up to the
    error, and ``finding`` has more details.
    """

    def __init__(
        self,
        kind: str,
        ranks: Sequence[int],
        message: str,
        *,
        trace: "Trace | None" = None,
        outputs: Sequence[str] = (),
        finding: Finding | None = None,
    ) -> None:
        super().__init__(message)
        self.kind, self.ranks = kind, tuple(ranks)
        self.trace, self.outputs, self.finding = trace, list(outputs), finding

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickling: a process pool passes errors on and would call RankError(message)."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


def describe_exception(error: BaseException) -> dict[str, Any]:
    """An exception as plain data."""
    try:
        text = str(error)[:SHOWN_TEXT]
    except BaseException:  # the reader's own __str__
        text = "(its text cannot be shown)"
    frames = [
        # `forward` with its class's name, a function in a function without that one's.
        [f.f_code.co_filename, line, f.f_code.co_qualname.rpartition("<locals>.")[2]]
        for f, line in traceback.walk_tb(error.__traceback__)
    ]
    described = {
        "type": type_name(type(error)),
        "types": [type_name(kind) for kind in type(error).__mro__],
        "text": text,
        "notes": [str(note)[:SHOWN_TEXT] for note in getattr(error, "__notes__", [])][:5],
        "frames": frames[:SHOWN_FRAMES] + frames[SHOWN_FRAMES:][-SHOWN_FRAMES:],
    }
    if isinstance(error, SystemExit):
        described["status"] = repr(error.code)
    return described


def their_frames(raised: Mapping[str, Any]) -> list[list[Any]]:
    """`[file, line, function]` of the reader's own code, the outermost first."""
    frames = [list(frame) for frame in raised.get("frames", [])]
    return [frame for frame in frames if not any(part in frame[0] for part in NOT_THEIRS)]


def traceback_text(error: BaseException) -> str:
    """The reader's innermost line, then Python's traceback without the frames of this package."""
    described = traceback.TracebackException.from_exception(error, limit=None)
    each: traceback.TracebackException | None = described
    while each is not None:  # the frames below the reader's code, and those of the trace
        away = (*PACKAGE_FOLDERS, "<frozen runpy>")
        each.stack[:] = [frame for frame in each.stack if not frame.filename.startswith(away)]
        each = each.__cause__ or each.__context__
    theirs = their_frames(describe_exception(error))
    where = [f"where: {line_of_code(*theirs[-1])}", ""] if theirs else []
    return "\n".join([*where, *"".join(described.format()).splitlines()])


def line_of_code(file: str, line: int, function: str) -> str:
    """`train.py:41 in step: loss.backward()`."""
    linecache.checkcache(file)  # it may have been saved since another run
    code = linecache.getline(file, line).strip()[:200]
    return f"{place(file, line)} in {function}" + (f": {code}" if code else "")


def threads_in(dump: str) -> list[list[tuple[str, int, str]]]:
    """What faulthandler wrote: each thread's (file, line, function), the innermost first.

    The main thread comes first.
    """
    threads = dump.strip().split("\n\n")
    threads.sort(key=lambda thread: "Current thread" not in thread)
    found = [re.findall(r'File "(.+?)", line (\d+) in (.+)', thread) for thread in threads]
    return [[(file, int(line), function) for file, line, function in each] for each in found]


def stack_text(dump: str) -> str:
    """What faulthandler wrote, innermost line first, the main thread first, each with its code."""
    threads = threads_in(dump)
    lines = []
    for frames in threads:
        shown = [frame for frame in frames if not frame[0].startswith(PACKAGE_FOLDERS)]
        theirs = [f for f in shown if not any(part in f[0] for part in NOT_THEIRS)]
        if not theirs and len(threads) > 1:
            continue  # a thread of a library
        lines += [line_of_code(*frame) for frame in shown[:SHOWN_FRAMES]]
    return "\n".join(lines)
