"""What a check says in the end, the exceptions by which a check says it, and its words."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from multigpu.ranks.errors import listed

if TYPE_CHECKING:
    from multigpu.ranks.errors import Finding
    from multigpu.ranks.trace import Trace

Status = Literal["pass", "wrong", "hang", "crash", "not_started", "missing_file", "checker_fault"]

EXIT_CODES = {"pass": 0, "checker_fault": 3}  # every other status: 1; wrong usage: 2
SHOWN_LINES = 12  # of what the learner's code printed


@dataclass(frozen=True)
class Verdict:
    """The verdict on one exercise, with the first failing check explained.

    ``passed`` of ``total`` checks went through.  ``message_id`` names the mistake for programs
    ("split.remainder_dropped"), ``parts`` explain it to people: "expected", "came", "usually" and
    "where", or "" for a text without a label.  A pass has no id, and only a "note" where a check
    has a remark on it.  ``output`` is what the learner's code printed in that
    check.  ``unwritten`` is the function that is not written yet, where that is the verdict.
    """

    exercise: str
    status: Status
    message_id: str | None
    parts: dict[str, str]
    passed: int
    total: int
    seconds: float
    output: str = ""
    unwritten: str | None = None

    @property
    def message(self) -> str:
        """The parts, one below the other."""
        return message_of(self.parts)

    def record(self) -> dict[str, Any]:
        """The fields that ``multigpu check --json`` prints."""
        names = ("exercise", "status", "message_id", "message", "passed", "total", "seconds")
        return {name: getattr(self, name) for name in names}


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """0 when all asked for pass, 1 when some do not, 3 when the checker itself is at fault."""
    return max((EXIT_CODES.get(verdict.status, 1) for verdict in verdicts), default=0)


class CheckerFault(Exception):
    """The checker, or a check, is at fault, and never the learner."""


class Refused(Exception):
    """A submission does not pass: status, message id and the parts of the verdict's message.

    ``expected`` and ``came`` are seen from the learner's side and hold the learner's numbers;
    ``usually`` says which mistake does this; ``where`` is the line, if one is known.  ``text`` is
    what needs no such parts.  ``finding`` says where ranks got stuck or disagree, ``trace`` what
    they did until then, ``notes`` what a check has added to an exception.  ``unwritten`` is the
    function that is not written yet, where that is the reason.
    """

    def __init__(
        self,
        status: Status,
        message_id: str,
        text: str = "",
        *,
        expected: str = "",
        came: str = "",
        usually: str = "",
        where: str = "",
        output: str = "",
        unwritten: str | None = None,
    ) -> None:
        super().__init__(status, message_id)
        self.status, self.message_id, self.text = status, message_id, text
        self.expected, self.came, self.usually, self.where = expected, came, usually, where
        self.output, self.unwritten = output, unwritten
        self.finding: Finding | None = None
        self.trace: Trace | None = None
        self.notes: list[str] = []

    @property
    def parts(self) -> dict[str, str]:
        """The parts that are known, by their labels."""
        parts = {"": self.text, "expected": self.expected, "came": self.came}
        parts |= {"usually": self.usually, "where": self.where}
        return {label: printable(text) for label, text in parts.items() if text}

    @property
    def message(self) -> str:
        """The parts, one below the other."""
        return message_of(self.parts)

    def __str__(self) -> str:
        return self.message

    def half_written(self, although: str) -> "Refused":
        """Instead of not_started, where the function is written for some cases."""
        return Refused(
            "crash",
            "exception",
            came=f"NotImplementedError, although {although}.",
            usually="one case is not written yet.",
            where=self.where,
            output=self.output,
        )


class Wrong(Refused):
    """A wrong answer, already explained: ``message_id`` is ``"<function>.<mistake>"``."""

    def __init__(self, message_id: str, **parts: str) -> None:
        super().__init__("wrong", message_id, **parts)


# --- words ---------------------------------------------------------------------------------------


def message_of(parts: dict[str, str]) -> str:
    """The parts of a verdict in one text."""
    return "\n".join(f"{label}: {text}" if label else text for label, text in parts.items())


def printable(text: str) -> str:
    """What a terminal, or a file in UTF-8, can show of a learner's text.

    Other characters are shown as Python writes them ("\\x1b"): an escape sequence could clear the
    screen, and half of a surrogate pair cannot be encoded.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in lines
    )


def numbered(noun: str, numbers: Sequence[int]) -> str:
    """For example "row 9", "rows 3, 4 and 9"; four or more in a row become "rows 3 to 8"."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) == 1:
        return f"{noun} {first}"
    if len(numbers) > 3 and list(numbers) == list(range(first, last + 1)):
        return f"{noun}s {first} to {last}"
    return f"{noun}s {listed(numbers)}"


def times(factor: Fraction) -> str:
    """How a value relates to the right one: "exactly 3×", "exactly 1/3 of"."""
    if factor.denominator == 1:
        return f"exactly {factor.numerator}×"
    return f"exactly {factor.numerator}/{factor.denominator} of"


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
