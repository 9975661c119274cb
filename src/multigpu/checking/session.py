"""Runs the checks of some exercises on one submission: a pytest plugin, and pytest itself.

    pytest tests/exercises --submission DIR

gives one verdict per exercise at the end.  ``multigpu check`` runs the same tests with the same
plugin inside its own process: ``check_with``.  On how many ranks or GPUs a check runs stands at the
check itself, in its parameter ``world`` or ``n``.
"""

import contextlib
import gc
import io
import os
import sys
import types
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from multigpu.checking.catalog import Catalog, Course, Exercise, find_course
from multigpu.checking.learner import Learner, Submission, WarmServer
from multigpu.checking.stand_ins import spare_the_compiler
from multigpu.checking.verdicts import CheckerFault, Refused, Verdict, count, printable

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
            came = f"NotImplementedError, although {count(self.passed, 'check')} passed before."
            message = f"came: {came}\nusually: one case is not written yet.\nwhere: {refused.where}"
            refused = Refused("crash", "exception", message, output=refused.output)
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
    config.addinivalue_line("markers", "exercise(name): a check of this exercise")
    if not any(isinstance(plugin, Checks) for plugin in config.pluginmanager.get_plugins()):
        given = config.getoption("--submission")
        folder = Path(config.invocation_params.dir, given).resolve() if given else None
        checks = Checks(submission=folder, backing=config.getoption("--backing"))
        config.pluginmanager.register(checks)
    else:
        # The command tells of a failure by itself. pytest's own way writes out every argument of
        # every function on the way, tensors too, and takes a tenth of a second for it.
        config.option.tbstyle = "native"


class Checks:
    """All checks of one pytest run, and what they found."""

    def __init__(
        self,
        course: Course | None = None,
        *,
        submission: Path | None = None,
        wanted: Iterable[Exercise] | None = None,
        server: WarmServer | None = None,
        backing: str | None = None,
        first_only: bool = False,
        one_world: bool = False,
    ) -> None:
        self._course, self._backing = course, backing
        self._submission = Submission(submission) if submission else None
        sys.path[:] = [path for path in sys.path if Path(path).resolve() != submission]
        self._server, self._brought = server, server is not None
        self._wanted = None if wanted is None else {exercise.name for exercise in wanted}
        self._exercises: dict[str, Exercise] = {}
        self._first_only, self._one_world = first_only, one_world
        self._tallies = {name: Tally(name, first_only) for name in self._wanted or ()}
        self._learners: dict[str, Learner] = {}  # by test
        self.fault: str | None = None  # what stopped pytest itself
        self._collects_garbage = False  # and has to again

    def verdicts(self) -> list[Verdict]:
        """One verdict per exercise, in the order of the course."""
        if self.fault:
            for tally in self._tallies.values():
                tally.fault(self.fault)
        order = list(self._exercises)
        names = sorted(self._tallies, key=lambda name: order.index(name) if name in order else -1)
        return [self._tallies[name].verdict() for name in names]

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Count the checks of each exercise and drop those that nobody asked for."""
        marked = [(item, name) for item in items if (name := exercise_name(item))]
        if marked and self._course is None:
            self._course = find_course(marked[0][0].path)
        if self._course is not None:
            self._exercises = {e.name: e for e in Catalog(self._course).exercises}
        dropped = []
        others = other_worlds(items) if self._one_world else []
        for item, name in marked:
            if name not in self._exercises:
                self.fault = f"{item.nodeid}: there is no exercise {name}"
                raise pytest.UsageError(self.fault)
            if (self._wanted is None or name in self._wanted) and item not in others:
                self._tallies.setdefault(name, Tally(name, self._first_only)).total += 1
            else:
                dropped.append(item)
        if dropped:
            items[:] = [item for item in items if item not in dropped]
            config.hook.pytest_deselected(items=dropped)

    @contextlib.contextmanager
    def quick_imports(self) -> Iterator[None]:
        """Look for no garbage until all checks, and torch, are imported: there is none then."""
        self._collects_garbage = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            self.pytest_collection_finish()

    def pytest_collection_finish(self) -> None:
        """All is imported."""
        if self._collects_garbage:
            gc.enable()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run every check on virtual GPUs, and on real ones where there are enough."""
        if "learner" in metafunc.fixturenames and exercise_name(metafunc.definition):
            metafunc.fixturenames.append("backing")
            metafunc.parametrize("backing", self._backings(), scope="session")

    def _backings(self) -> list[str]:
        if self._backing:
            return [self._backing]
        import torch

        return ["cpu", "real"] if torch.cuda.device_count() > 1 else ["cpu"]

    @pytest.fixture
    def learner(self, request: pytest.FixtureRequest, backing: str) -> Learner:
        """The submission, ready to run."""
        name = exercise_name(request.node)
        if name is None or self._course is None:
            raise CheckerFault(f"{request.node.name} uses the learner without @exercise(...)")
        if self._tallies[name].stopped:
            pytest.skip("an earlier check of this exercise has said why already")
        if self._server is None:
            self._server = WarmServer()
        spare_the_compiler()  # here too: a check may train with torch's own optimizer
        if self._submission is None:
            self._submission = Submission(self._course.solutions)
        learner = Learner(self._server, self._exercises[name], self._submission, backing)
        self._learners[request.node.nodeid] = learner
        return learner

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put the outcome of a check into its exercise's tally."""
        report = yield
        name = exercise_name(item)
        if name is None:
            return report
        tally = self._tallies[name]
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


def exercise_name(item: pytest.Item) -> str | None:
    """The exercise that a test is marked with."""
    mark = item.get_closest_marker("exercise")
    return str(mark.args[0]) if mark else None


def other_worlds(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Of each check that runs on several numbers of ranks or GPUs, all but the one on three.

    Where there is none on three, all but the one on most.
    """
    by_check: dict[str, dict[int, list[pytest.Item]]] = {}
    for item in items:
        params = getattr(item, "callspec").params if hasattr(item, "callspec") else {}  # noqa: B009
        world = params.get("world", params.get("n"))
        if isinstance(world, int):
            check = item.nodeid.partition("[")[0]
            by_check.setdefault(check, {}).setdefault(world, []).append(item)
    others = []
    for worlds in by_check.values():
        kept = 3 if 3 in worlds else max(worlds)
        others += [item for world, own in worlds.items() if world != kept for item in own]
    return others


def check_with(
    server: WarmServer,
    exercises: Sequence[Exercise],
    course: Course,
    *,
    submission: Path,
    backing: str | None = None,
    first_only: bool = False,
    one_world: bool = False,
) -> list[Verdict]:
    """The verdicts on ``exercises``, in their order.

    With ``first_only`` an exercise's first failing check ends it, which is quicker.  With
    ``one_world`` a check that runs on several numbers of ranks or GPUs runs on one of them.
    """
    checks = Checks(
        course,
        submission=submission.resolve(),
        wanted=exercises,
        server=server,
        backing=backing,
        first_only=first_only,
        one_world=one_world,
    )
    paths = [
        course.check_file(exercise.chapter.module, exercise.function) for exercise in exercises
    ]
    files = [str(path) for path in paths if path.is_file()]
    if files:
        quiet = contextlib.redirect_stdout(io.StringIO())
        with own_settings(), quiet, own_modules(course), checks.quick_imports():
            code = pytest.main(
                [*OPTIONS, *places_for(course), *files], [sys.modules[__name__], checks]
            )
        if code == pytest.ExitCode.INTERRUPTED and not checks.fault:
            raise KeyboardInterrupt
        if code in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
            checks.fault = checks.fault or f"pytest ended with exit code {code}"
    return checks.verdicts()


def places_for(course: Course) -> tuple[str, str]:
    """Where pytest finds itself, and the folder above which it need not look for anything.

    Without the latter it reads every folder from the disk's root down to the checks, /tmp too.
    """
    return f"--rootdir={course.root}", f"--confcutdir={course.checks}"


@contextlib.contextmanager
def own_settings() -> Iterator[None]:
    """Keep out of pytest what the environment says: it is meant for other people's tests."""
    before = {name: value for name, value in os.environ.items() if name.startswith("PYTEST_")}
    for name in before:
        del os.environ[name]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"]
        os.environ.update(before)


@contextlib.contextmanager
def own_modules(course: Course) -> Iterator[None]:
    """Import this course's checks anew.  What has their names comes back afterwards.

    It may be another course's, or an older text of this one's.
    """
    package = ".".join(course.checks.relative_to(course.root).parts)
    before = _take(package)
    try:
        yield
    finally:
        _take(package)
        sys.modules.update(before)


def _take(package: str) -> dict[str, types.ModuleType]:
    """Remove a package and all that is in it from Python's table, and hand it over."""
    inside = [name for name in sys.modules if name == package or name.startswith(f"{package}.")]
    return {name: sys.modules.pop(name) for name in inside}
