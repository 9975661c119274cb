"""Counts the checks of each exercise and makes one verdict of them."""

from dataclasses import dataclass, field

from multigpu.checking.verdicts import Refused, Status, Verdict, printable
from multigpu.checking.wording import count

GO_ON = ("wrong",)  # after anything else the other checks would most likely say the same


@dataclass
class Tally:
    """The checks of one exercise so far."""

    exercise: str
    first_only: bool = False  # stop at the first failing check, whatever it says
    total: int = 0
    passed: int = 0
    seconds: float = 0.0
    first: Refused | None = field(default=None)
    notes: list[str] = field(default_factory=list)  # of checks that passed

    @property
    def stopped(self) -> bool:
        """Whether the remaining checks need not run."""
        return self.first is not None and (self.first_only or self.first.status not in GO_ON)

    def fail(self, refused: Refused) -> None:
        """Note a failing check; the first one is the one that is shown."""
        if refused.status == "not_started" and self.passed:
            refused = unfinished(refused, self.passed)
        self.first = self.first or refused

    def fault(self, text: str) -> None:
        """Note that a check, or the checker, is itself broken."""
        self.fail(Refused("checker_fault", "checker_fault", text))

    def verdict(self) -> Verdict:
        """The verdict, given that all checks that could run have run."""
        if self.first is None and not self.passed:
            self.fault(f"no check of {self.exercise} ran")
        status: Status = self.first.status if self.first else "pass"
        return Verdict(
            exercise=self.exercise,
            status=status,
            message_id=self.first.message_id if self.first else None,
            message=self.first.message if self.first else remarks(self.notes),
            passed=self.passed,
            total=self.total,
            seconds=round(self.seconds, 3),
            output=self.first.output if self.first else "",
        )


def remarks(notes: list[str]) -> str:
    """What a pass says: the first remark, for those of other world sizes say much the same."""
    return f"note: {printable(notes[0])}" if notes else ""


def unfinished(refused: Refused, passed: int) -> Refused:
    """What to say instead of "not written yet" about an exercise that has passed some checks."""
    where = refused.message.rpartition("\n")[2]
    message = (
        f"came: NotImplementedError, although {count(passed, 'check')} passed before.\n"
        f"usually: one case is not written yet.\n{where}"
    )
    return Refused("crash", "exception", message, output=refused.output)
