"""The pytest plugin: each check of an exercise is a test.

    pytest tests/exercises --submission DIR

gives one verdict per exercise at the end, the same as ``multigpu check`` does.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multigpu.checking.catalog import (
    BadSettings,
    Catalog,
    CourseNotFound,
    Exercise,
    UnknownExercise,
    find_course,
)
from multigpu.checking.session import Check, Session
from multigpu.checking.verdicts import Refused

SESSION = pytest.StashKey[Session]()  # one for each run of pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of a pytest run."""
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


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "DeclarationFile | None":
    """A file named like an exercise declares it; others in its folder only help."""
    if file_path.suffix != ".py" or file_path.parent.parent.name != "exercises":
        return None
    try:
        course = find_course(file_path)
        exercise = Catalog(course).one(f"{file_path.parent.name}.{file_path.stem}")
    except (UnknownExercise, CourseNotFound):
        return None
    except BadSettings as error:
        raise parent.CollectError(str(error)) from None
    config = parent.config
    if SESSION not in config.stash:
        given = config.getoption("--submission")
        config.stash[SESSION] = Session(
            course,
            submission=Path(config.invocation_params.dir, given or course.solutions).resolve(),
            backing=config.getoption("--backing"),
        )
    file: DeclarationFile = DeclarationFile.from_parent(parent, path=file_path)
    file.exercise = exercise
    return file


class DeclarationFile(pytest.File):
    """A file that declares an exercise."""

    exercise: Exercise

    def collect(self) -> Iterator[pytest.Item]:
        """One test per check."""
        for check in self.config.stash[SESSION].checks_of(self.exercise):
            item: CheckItem = CheckItem.from_parent(self, name=check.name)
            item.check = check
            yield item


class CheckItem(pytest.Item):
    """One check of the submission."""

    check: Check

    def runtest(self) -> None:
        """Run it.  A refusal is its failure."""
        session = self.config.stash[SESSION]
        if session.tallies[self.check.exercise.name].stopped:
            pytest.skip("an earlier check of this exercise has said why already")
        refused = session.run(self.check)
        if refused is not None:
            raise refused

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The message alone: pytest's own way would write out every tensor on the way."""
        error = excinfo.value
        if isinstance(error, Refused):
            return f"{error.status} ({error.message_id})\n{error.message}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where a failure is shown to be."""
        return self.path, 0, self.name


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line per exercise that was checked, below pytest's own report."""
    session = terminalreporter.config.stash.get(SESSION, None)
    tallies = session.tallies if session else {}
    checked = [tally.verdict() for tally in tallies.values() if tally.passed or tally.first]
    if checked:
        terminalreporter.section("exercises")
    for v in checked:
        line = f"{v.exercise:<40} {v.status:<14} {v.passed}/{v.total}  {v.message_id or ''}"
        terminalreporter.line(line.rstrip())


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the server, if a check has started it."""
    session = config.stash.get(SESSION, None)
    if session is not None and session.server is not None:
        session.server.close()
