"""Runs the checks of exercises on one submission, and gives one verdict per exercise.

``multigpu check`` and ``grade`` call ``check_with``.  A run of pytest has a Session, too:
``plugin.py``.  The cases of an exercise say on how many ranks or GPUs they run.
"""

import contextlib
import io
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from multigpu.checking.catalog import Course, Exercise
from multigpu.checking.declaration import Case, Declaration, load
from multigpu.checking.learner import Learner, Submission, WarmServer
from multigpu.checking.stand_ins import spare_the_compiler
from multigpu.checking.verdicts import CheckerFault, Refused, Verdict, printable
from multigpu.ranks.errors import counted

KEEPS_CHECKING = ("wrong",)  # after anything else the other checks would most likely say the same


@dataclass(frozen=True)
class Check:
    """The cases of one place of an exercise."""

    exercise: Exercise
    declaration: Declaration
    cases: Sequence[Case]
    backing: str  # "cpu", "cuda:0" or "real"

    @property
    def world(self) -> int | None:
        """On how many GPUs or ranks, if on any."""
        return self.cases[0].gpus or self.cases[0].world or None

    @property
    def name(self) -> str:
        """Where it runs: "split[3 GPUs]"."""
        gpus, world = self.cases[0].place
        where = counted(*((world, "rank") if world else (gpus, "GPU")))
        where += f", {self.backing}" if self.backing != "cpu" else ""
        where += ", alone" if self.cases[0].alone else ""
        return f"{self.exercise.function}[{where}]"


@dataclass
class Tally:
    """The checks of one exercise so far."""

    exercise: str
    total: int = 0
    passed: int = 0
    seconds: float = 0.0
    first: Refused | None = None  # the first failing check is the one that is shown
    notes: list[str] = field(default_factory=list)  # of checks that passed

    @property
    def stopped(self) -> bool:
        """Whether the remaining checks need not run."""
        return self.first is not None and self.first.status not in KEEPS_CHECKING

    def verdict(self) -> Verdict:
        """The verdict, given that all checks that could run have run."""
        first = self.first
        if first is None and not self.passed:
            first = checker_fault(f"no check of {self.exercise} ran")
        counted = (self.passed, self.total, round(self.seconds, 3))
        if first is None:  # the first remark: those of other world sizes say much the same
            note = {"note": printable(self.notes[0])} if self.notes else {}
            return Verdict(self.exercise, "pass", None, note, *counted)
        return Verdict(
            self.exercise,
            first.status,
            first.message_id,
            first.parts,
            *counted,
            output=first.output,
            unwritten=first.unwritten,
        )


def checker_fault(text: str) -> Refused:
    """What to say where a check, or the checker, is itself broken."""
    return Refused("checker_fault", "checker_fault", text)


class Session:
    """One submission, the server that runs it, and what its exercises have come to so far."""

    def __init__(
        self,
        course: Course,
        *,
        submission: Path,
        server: WarmServer | None = None,  # started by the first check if there is none
        backing: str | None = None,
        out_of_reach: Iterable[Path] = (),
    ) -> None:
        self.course, self.server, self.backing = course, server, backing
        self.submission = Submission(submission)
        self.out_of_reach = tuple(map(str, (course.root, *out_of_reach)))  # the answers are there
        self.tallies: dict[str, Tally] = {}  # by exercise
        # A random.py of the learner's must not hide Python's from the judge.
        sys.path[:] = [path for path in sys.path if Path(path).resolve() != submission]

    def checks_of(self, exercise: Exercise) -> list[Check]:
        """The checks of an exercise, each on virtual GPUs, and on real ones if there are enough.

        Raises whatever is wrong with its declaration.
        """
        import torch

        declaration = load(self.course.check_file(exercise.chapter.module, exercise.function))
        backings = ["cpu", "real"] if torch.cuda.device_count() > 1 else ["cpu"]
        checks = [
            Check(exercise, declaration, cases, backing)
            for cases in declaration.runs
            for backing in ([self.backing] if self.backing else backings)
        ]
        self.tallies[exercise.name] = Tally(exercise.name, total=len(checks))
        return checks

    def run(self, check: Check, *, explain: bool = True) -> Refused | None:
        """Run a check and note what came of it: why the submission does not pass, or None.

        ``explain=False`` saves the time of a diagnosis.
        """
        from multigpu.checking import judging

        self.server = self.server or WarmServer()
        spare_the_compiler()  # here too: a check may train with torch's own optimizer
        learner = Learner(
            self.server, check.exercise, self.submission, check.backing, self.out_of_reach
        )
        tally, began = self.tallies[check.exercise.name], time.perf_counter()
        refused = None
        try:
            judging.check(check.declaration, learner, check.cases, explain=explain)
            tally.passed += 1
            tally.notes += learner.notes
        except Refused as error:
            refused = error
            if learner.answers:
                refused.output = refused.output or learner.answers[-1].output
            if refused.status == "not_started" and tally.passed:
                refused = refused.half_written(f"{counted(tally.passed, 'check')} passed before")
        except KeyboardInterrupt:
            raise
        except BaseException:  # a check may call pytest.skip(), which is not an Exception
            refused = checker_fault(
                f"{check.exercise.name}, in {check.name}:\n{traceback.format_exc()}"
            )
        tally.first = tally.first or refused
        tally.seconds += time.perf_counter() - began
        return refused


def check_with(
    server: WarmServer,
    exercises: Sequence[Exercise],
    course: Course,
    *,
    submission: Path,
    backing: str | None = None,
    out_of_reach: Iterable[Path] = (),
    stop_at_first: bool = False,
    choose: Callable[[list[Check]], list[Check]] = lambda checks: checks,
) -> list[Verdict]:
    """The verdicts on ``exercises``, in their order.

    The submission cannot read the course's folder, and not these that are ``out_of_reach``.
    ``stop_at_first`` leaves out what comes after the first failing check of an exercise, and
    ``choose`` says which of its checks to run.
    """
    session = Session(
        course,
        submission=submission.resolve(),
        server=server,
        backing=backing,
        out_of_reach=out_of_reach,
    )
    verdicts = []
    # What a declaration prints, or torch warns of while it trains, is not for the learner.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
        for exercise in exercises:
            try:
                for each in choose(session.checks_of(exercise)):
                    tally = session.tallies[exercise.name]
                    if not (tally.stopped or (stop_at_first and tally.first)):
                        session.run(each, explain=tally.first is None)  # the first one is shown
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                text = f"{exercise.name} cannot be checked:\n{traceback.format_exc()}"
                if isinstance(error, CheckerFault):  # of the declaration: it says where and why
                    text = str(error)
                session.tallies[exercise.name] = Tally(exercise.name, first=checker_fault(text))
            verdicts.append(session.tallies[exercise.name].verdict())
    return verdicts
