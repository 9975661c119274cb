"""What a caller gets when a run of ranks goes wrong, and how a rank describes an exception."""

import copyreg
import linecache
import re
import traceback
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from multigpu.ranks.failures import NOT_THEIRS, their_frames
from multigpu.ranks.findings import Finding
from multigpu.ranks.wording import place

if TYPE_CHECKING:
    from multigpu.ranks.trace import Trace

# As Python has it: a type can hide behind a metaclass of its own.
type_name: Callable[[type], str] = type.__dict__["__name__"].__get__

SHOWN_FRAMES = 20
SHOWN_TEXT = 2000  # characters


class RankError(Exception):
    """A run of ranks went wrong.

    ``kind`` is "exception", "exit", "mismatch", "deadlock" or "no_progress"; ``ranks`` are those to
    blame.  The text names rank, cause, file and line.  ``trace`` and ``outputs`` are what there was
    up to then, ``finding`` has more details.
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
        """Pickling: a process pool hands on errors, and would call RankError(message)."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


def describe_exception(error: BaseException) -> dict[str, Any]:
    """An exception as plain data."""
    frames = [
        [frame.f_code.co_filename, line, spoken_name(frame.f_code)]
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    described = {
        "type": type_name(type(error)),
        "types": [type_name(kind) for kind in type(error).__mro__],
        "text": _text(error),
        "notes": [str(note)[:SHOWN_TEXT] for note in getattr(error, "__notes__", [])][:5],
        "frames": frames[:SHOWN_FRAMES] + frames[SHOWN_FRAMES:][-SHOWN_FRAMES:],
    }
    if isinstance(error, SystemExit):
        described["status"] = repr(error.code)
    return described


def spoken_name(code: types.CodeType) -> str:
    """``forward`` of a class with the class's name, a function in a function without that one's."""
    return code.co_qualname.rpartition("<locals>.")[2]


def traceback_text(error: BaseException) -> str:
    """The reader's innermost line, then Python's traceback without the frames of this package."""
    described = traceback.TracebackException.from_exception(error, limit=None)
    _drop_ours(described)
    lines = [*_where(describe_exception(error)), *"".join(described.format()).splitlines()]
    return "\n".join(lines)


def _where(described: dict[str, Any]) -> list[str]:
    frames = their_frames(described)
    if not frames:
        return []
    file, line, function = frames[-1]
    code = linecache.getline(file, line).strip()
    return [f"where: {place(file, line)} in {function}" + (f": {code}" if code else ""), ""]


def _drop_ours(described: traceback.TracebackException | None) -> None:
    """Take the frames of this package out of a traceback: those below and those of the trace."""
    while described is not None:
        theirs = [f for f in described.stack if "/multigpu/ranks/" not in f.filename]
        described.stack[:] = theirs
        described = described.__cause__ or described.__context__


def stack_text(dump: str) -> str:
    """What faulthandler wrote, innermost line first, the main thread first, each with its code."""
    threads = sorted(dump.strip().split("\n\n"), key=lambda text: "Current thread" not in text)
    lines = []
    for thread in threads:
        frames = re.findall(r'File "(.+?)", line (\d+) in (.+)', thread)
        shown = [frame for frame in frames if "/multigpu/ranks/" not in frame[0]]
        theirs = [f for f in shown if not any(part in f[0] for part in NOT_THEIRS)]
        if not theirs and len(threads) > 1:
            continue  # a thread of a library
        for file, line, function in shown[:SHOWN_FRAMES]:
            code = linecache.getline(file, int(line)).strip()
            lines.append(f"{place(file, int(line))} in {function}" + (f": {code}" if code else ""))
    return "\n".join(lines)


def _text(error: BaseException) -> str:
    try:
        return str(error)[:SHOWN_TEXT]
    except BaseException:  # the reader's own __str__
        return "(its text cannot be shown)"
