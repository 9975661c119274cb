"""What a check says in the end, and the exceptions by which a check says it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from multigpu.ranks.errors import Finding

Status = Literal["pass", "wrong", "hang", "crash", "not_started", "missing_file", "checker_fault"]

EXIT_CODES = {"pass": 0, "checker_fault": 3}  # every other status: 1; wrong usage: 2


@dataclass(frozen=True)
class Verdict:
    """The verdict on one exercise, with the first failing check explained.

    ``passed`` of ``total`` checks went through.  ``message_id`` names the mistake for programs
    ("split.remainder_dropped"), ``message`` explains it to people.  A pass has no id, and a message
    only where a check has a remark on it.
    ``output`` is what the learner's code printed in that check.
    """

    exercise: str
    status: Status
    message_id: str | None
    message: str
    passed: int
    total: int
    seconds: float
    output: str = ""

    def record(self) -> dict[str, Any]:
        """The fields that ``multigpu check --json`` prints."""
        record = asdict(self)
        del record["output"]
        return record


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """0 when all asked for pass, 1 when some do not, 3 when the checker itself is at fault."""
    return max((EXIT_CODES.get(verdict.status, 1) for verdict in verdicts), default=0)


def printable(text: str) -> str:
    """What a terminal, or a file in UTF-8, can show of a learner's text.

    Other characters come as Python writes them ("\\x1b"): an escape could wipe the screen, and half
    of a surrogate pair is no UTF-8.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in lines
    )


class Refused(Exception):
    """A submission does not pass: status, message id and message of the verdict to come."""

    def __init__(
        self,
        status: Status,
        message_id: str,
        message: str,
        *,
        output: str = "",
        finding: "Finding | None" = None,
    ) -> None:
        self.status = status
        self.message_id = message_id
        self.message = printable(message)
        super().__init__(self.message)
        self.output = output
        self.finding = finding  # where ranks got stuck or disagree


class Wrong(Refused):
    """What a check raises for a wrong answer.

    ``message_id`` is ``"<exercise function>.<mistake>"``.  ``expected`` and ``came`` are seen from
    the learner's side and hold the learner's numbers; ``usually`` says which mistake does this;
    ``where`` is ``answer.where``.  ``status="hang"`` is for a check that knows better than the
    general message why ranks got stuck.
    """

    def __init__(
        self,
        message_id: str,
        *,
        expected: str,
        came: str,
        usually: str,
        where: str | None = None,
        status: Status = "wrong",
    ) -> None:
        super().__init__(status, message_id, explain(expected, came, usually, where))


def explain(expected: str, came: str, usually: str, where: str | None) -> str:
    """The four parts of a message, one per line."""
    parts = {"expected": expected, "came": came, "usually": usually, "where": where}
    return "\n".join(f"{name}: {text}" for name, text in parts.items() if text)


class CheckerFault(Exception):
    """The checker, or a check, is at fault, and never the learner."""
