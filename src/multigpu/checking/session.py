"""Runs the checks of some exercises on one submission: a pytest plugin, and pytest itself.

    pytest tests/exercises --submission DIR

gives one verdict per exercise at the end.  ``multigpu check`` runs the same tests with the same
plugin inside its own process: ``check_with``.  The cases of an exercise say on how many ranks or
GPUs they run.
"""

import contextlib
import gc
import io
import os
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from multigpu.checking.catalog import (
    Catalog,
    Course,
    CourseNotFound,
    Exercise,
    UnknownExercise,
    find_course,
)
from multigpu.checking.declaration import Case, Declaration, load
from multigpu.checking.learner import Learner, Submission, WarmServer
from multigpu.checking.stand_ins import spare_the_compiler
from multigpu.checking.verdicts import Refused, Verdict, count, printable

OPTIONS = (
    *("-c", os.devnull, "--noconftest", "--import-mode=importlib", "--assert=plain"),
    *("-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:logging", "-p", "no:doctest"),
    *("-p", "no:junitxml", "-p", "no:faulthandler", "-p", "no:unraisableexception"),
    *("-p", "no:threadexception", "-p", "no:pastebin", "-p", "no:stepwise", "-p", "no:unittest"),
    *("-p", "no:setuponly", "-p", "no:setupplan", "-p", "no:legacypath", "-p", "no:subtests"),
)
GO_ON = ("wrong",)  # after anything else the other checks would most likely say the same


@dataclass
class Tally:
    """The checks of one exercise so far."""

    exercise: str
    total: int = 0
    passed: int = 0
    seconds: float = 0.0
    first: Refused | None = field(default=None)
    notes: list[str] = field(default_factory=list)  # of checks that passed

    @property
    def stopped(self) -> bool:
        """Whether the remaining checks need not run."""
        return self.first is not None and self.first.status not in GO_ON

    def fail(self, refused: Refused) -> None:
        """Note a failing check; the first one is the one that is shown."""
        if refused.status == "not_started" and self.passed:
            refused = refused.half_written(f"{count(self.passed, 'check')} passed before")
        self.first = self.first or refused

    def fault(self, text: str) -> None:
        """Note that a check, or the checker, is itself broken."""
        self.fail(Refused("checker_fault", "checker_fault", text))

    def verdict(self) -> Verdict:
        """The verdict, given that all checks that could run have run."""
        if self.first is None and not self.passed:
            self.fault(f"no check of {self.exercise} ran")
        counted = (self.passed, self.total, round(self.seconds, 3))
        if self.first is None:  # the first remark: those of other world sizes say much the same
            note = f"note: {printable(self.notes[0])}" if self.notes else ""
            return Verdict(self.exercise, "pass", None, note, *counted)
        return Verdict(
            self.exercise,
            self.first.status,
            self.first.message_id,
            self.first.message,
            *counted,
            output=self.first.output,
            unwritten=self.first.unwritten,
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of a plain pytest run."""
    group = parser.getgroup("multigpu")
    group.addoption(
        "--submission", metavar="DIR", help="folder with the modules to check (default: solutions)"
    )
    group.addoption(
        "--backing",
        metavar="WHERE",
        help="cpu: virtual GPUs; cuda:0: virtual GPUs on this real one; real: real GPUs. "
        "Default: cpu, and real too where there are two GPUs or more",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the checks, unless the command has brought its own."""
    if not any(isinstance(plugin, Checks) for plugin in config.pluginmanager.get_plugins()):
        given = config.getoption("--submission")
        folder = Path(config.invocation_params.dir, given).resolve() if given else None
        checks = Checks(submission=folder, backing=config.getoption("--backing"))
        config.pluginmanager.register(checks)


class Checks:
    """All checks of one pytest run, and what they found."""

    def __init__(
        self,
        course: Course | None = None,
        *,
        submission: Path | None = None,
        wanted: Iterable[Exercise] = (),
        server: WarmServer | None = None,
        backing: str | None = None,
        out_of_reach: Iterable[Path] = (),
    ) -> None:
        self._course, self._backing = course, backing
        self._submission = Submission(submission) if submission else None
        sys.path[:] = [path for path in sys.path if Path(path).resolve() != submission]
        self._server, self._brought = server, server is not None
        self._out_of_reach = tuple(out_of_reach)
        self._exercises: dict[str, Exercise] = {}
        self._tallies = {exercise.name: Tally(exercise.name) for exercise in wanted}
        self._learners: dict[str, Learner] = {}  # by test
        self.fault: str | None = None  # what stopped pytest itself

    def verdicts(self) -> list[Verdict]:
        """One verdict per exercise, in the order of the course."""
        if self.fault:
            for tally in self._tallies.values():
                tally.fault(self.fault)
        order = list(self._exercises)
        names = sorted(self._tallies, key=lambda name: order.index(name) if name in order else -1)
        return [self._tallies[name].verdict() for name in names]

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Count the checks of each exercise."""
        checks = [item for item in items if isinstance(item, Check)]
        if checks and self._course is None:
            self._course = find_course(checks[0].path)
        if self._course is not None:
            self._exercises = {e.name: e for e in Catalog(self._course).exercises}
        for item in checks:
            name = item.declaration.name
            if name not in self._exercises:
                self.fault = f"{item.nodeid}: there is no exercise {name}"
                raise pytest.UsageError(self.fault)
            self._tallies.setdefault(name, Tally(name)).total += 1

    def pytest_collection_finish(self) -> None:
        """All checks, and torch, are imported: from now on there is garbage to look for."""
        gc.enable()

    def pytest_collect_file(
        self, file_path: Path, parent: pytest.Collector
    ) -> "DeclarationFile | None":
        """A file named like an exercise declares it."""
        in_place = file_path.suffix == ".py" and file_path.parent.parent.name == "exercises"
        if in_place and is_declaration(file_path):
            file: DeclarationFile = DeclarationFile.from_parent(parent, path=file_path)
            file.checks = self
            return file
        return None

    def backings(self) -> list[str]:
        """Where the checks run: on virtual GPUs, and on real ones where there are enough."""
        import torch

        if self._backing:
            return [self._backing]
        return ["cpu", "real"] if torch.cuda.device_count() > 1 else ["cpu"]

    def learner_for(self, item: "Check") -> Learner:
        """The submission, ready to run for one check."""
        name = item.declaration.name
        assert self._course is not None, "found when the checks were collected"
        if self._tallies[name].stopped:
            pytest.skip("an earlier check of this exercise has said why already")
        if self._server is None:
            self._server = WarmServer()
        spare_the_compiler()  # here too: a check may train with torch's own optimizer
        if self._submission is None:
            self._submission = Submission(self._course.solutions)
        learner = Learner(
            self._server,
            self._exercises[name],
            self._submission,
            item.backing,
            tuple(map(str, (self._course.root, *self._out_of_reach))),  # the answers are there
        )
        self._learners[item.nodeid] = learner
        return learner

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put the outcome of a check into its exercise's tally."""
        report = yield
        if not isinstance(item, Check):
            return report
        tally = self._tallies[item.declaration.name]
        tally.seconds += report.duration
        error = call.excinfo.value if call.excinfo else None
        learner = self._learners.get(item.nodeid)
        if isinstance(error, Refused):
            if learner and learner.answers:
                error.output = error.output or learner.answers[-1].output
            tally.fail(error)
            report.longrepr = f"{error.status} ({error.message_id})\n{error.message}"
        elif report.failed:
            tally.fault(report.longreprtext)
        elif report.when == "call" and report.passed:
            if learner is None or not learner.answers:
                tally.fault(f"{item.nodeid} passed without running the submission")
                report.outcome, report.longrepr = "failed", "the check ran nothing"
            else:
                tally.passed += 1
                tally.notes += learner.notes
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Remember that a file of checks could not be read."""
        if report.failed:
            self.fault = report.longreprtext

    def pytest_internalerror(self, excrepr: object) -> None:
        """Remember that pytest itself failed."""
        self.fault = str(excrepr)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """One line per exercise, below pytest's own report."""
        if self._tallies:
            terminalreporter.section("exercises")
            for v in self.verdicts():
                line = f"{v.exercise:<40} {v.status:<14} {v.passed}/{v.total}  {v.message_id or ''}"
                terminalreporter.line(line.rstrip())

    def pytest_unconfigure(self) -> None:
        """End the server, if it was started here."""
        if self._server is not None and not self._brought:
            self._server.close()


class DeclarationFile(pytest.File):
    """A file that declares an exercise: one check for each place on which its cases run."""

    checks: Checks

    def collect(self) -> Iterator[pytest.Item]:
        """One item per run, named for where it runs: "split[3 GPUs]"."""
        declaration = load(self.path)
        for cases in declaration.runs:
            gpus, world = cases[0].place
            place = count(*((world, "rank") if world else (gpus, "GPU")))
            for backing in self.checks.backings():
                where = place if backing == "cpu" else f"{place}, {backing}"
                where += ", alone" if cases[0].alone else ""
                item: Check = Check.from_parent(self, name=f"{declaration.function}[{where}]")
                item.declaration, item.cases, item.backing = declaration, cases, backing
                yield item


class Check(pytest.Item):
    """The cases of one place of a declared exercise."""

    declaration: Declaration
    cases: list[Case]
    backing: str

    @property
    def world(self) -> int | None:
        """On how many GPUs or ranks, if on any."""
        return self.cases[0].gpus or self.cases[0].world or None

    def runtest(self) -> None:
        """Judge the submission."""
        from multigpu.checking.judging import check

        assert isinstance(self.parent, DeclarationFile)
        check(self.declaration, self.parent.checks.learner_for(self), self.cases)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """A refusal tells itself; a broken check is shown as Python shows an exception.

        pytest's own way writes out every argument of every function on the way, tensors too, and
        that takes longer than the check.
        """
        if isinstance(excinfo.value, Refused):
            return ""
        return super().repr_failure(excinfo, style="native")

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where a failure is shown to be."""
        return self.path, 0, self.name


def is_declaration(path: Path) -> bool:
    """Whether a file of tests/exercises declares an exercise, and does not only help others."""
    module, function = path.parent.name, path.stem
    try:
        Catalog(find_course(path)).one(f"{module}.{function}")
    except (UnknownExercise, CourseNotFound):
        return False
    return True


def check_with(
    server: WarmServer,
    exercises: Sequence[Exercise],
    course: Course,
    *,
    submission: Path,
    backing: str | None = None,
    out_of_reach: Iterable[Path] = (),
    options: Sequence[str] = (),
    plugins: Sequence[object] = (),
) -> list[Verdict]:
    """The verdicts on ``exercises``, in their order.

    The submission cannot read the course's folder, and not these that are ``out_of_reach``.
    ``options`` and ``plugins`` are pytest's.
    """
    checks = Checks(
        course,
        submission=submission.resolve(),
        wanted=exercises,
        server=server,
        backing=backing,
        out_of_reach=out_of_reach,
    )
    paths = [course.check_file(each.chapter.module, each.function) for each in exercises]
    files = [str(path) for path in paths if path.is_file()]
    if files:
        # Without --confcutdir pytest reads every folder from the disk's root down, /tmp too.
        places = (f"--rootdir={course.root}", f"--confcutdir={course.checks}")
        quiet = contextlib.redirect_stdout(io.StringIO())
        with nothing_of_others(course), quiet:
            code = pytest.main(
                [*OPTIONS, *places, *options, *files], [sys.modules[__name__], checks, *plugins]
            )
        if code == pytest.ExitCode.INTERRUPTED and not checks.fault:
            raise KeyboardInterrupt
        if code in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
            checks.fault = checks.fault or f"pytest ended with exit code {code}"
    return checks.verdicts()


@contextlib.contextmanager
def nothing_of_others(course: Course) -> Iterator[None]:
    """Keep out of pytest what is meant for other tests, and put it back afterwards.

    That is what the environment says, and modules with the names of the checks: they may be another
    course's, or an older text of this one's.  Garbage is not looked for until all is imported.
    """
    package = ".".join(course.checks.relative_to(course.root).parts)

    def checks_in_use() -> list[str]:
        return [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]

    environment = dict(os.environ)
    modules = {name: sys.modules.pop(name) for name in checks_in_use()}
    for name in environment:
        if name.startswith("PYTEST_"):
            del os.environ[name]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        os.environ.clear()
        os.environ.update(environment)
        for name in checks_in_use():
            del sys.modules[name]
        sys.modules.update(modules)
