"""Runs the checks of some exercises in this process, for the command and for notebooks."""

import contextlib
import io
import os
from collections.abc import Sequence
from pathlib import Path

from multigpu.checking.catalog import Exercise
from multigpu.checking.places import Course
from multigpu.checking.verdicts import Verdict
from multigpu.checking.warm import WarmServer

OPTIONS = (
    *("-c", os.devnull, "--noconftest", "--import-mode=importlib", "--assert=plain"),
    *("-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:logging", "-p", "no:doctest"),
    *("-p", "no:junitxml", "-p", "no:faulthandler", "-p", "no:unraisableexception"),
    *("-p", "no:threadexception", "-p", "multigpu.checking.plugin"),
)


def check(
    exercises: Sequence[Exercise], course: Course, *, submission: Path, backing: str | None = None
) -> list[Verdict]:
    """The verdicts on ``exercises``, in their order.

    The worker's server starts first: it and this process then import torch side by side.
    """
    with WarmServer() as server:
        return check_with(server, exercises, course, submission=submission, backing=backing)


def check_with(
    server: WarmServer,
    exercises: Sequence[Exercise],
    course: Course,
    *,
    submission: Path,
    backing: str | None = None,
    first_only: bool = False,
) -> list[Verdict]:
    """The same with a server that runs already, and goes on running.

    With ``first_only`` an exercise's first failing check ends it, which is quicker.
    """
    for variable in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):  # made for other people's tests
        os.environ.pop(variable, None)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import pytest

    from multigpu.checking.plugin import Checks

    checks = Checks(
        course,
        submission=submission.resolve(),
        wanted=exercises,
        server=server,
        backing=backing,
        first_only=first_only,
    )
    files = [str(course.check_file(e.chapter.module, e.function)) for e in exercises]
    with contextlib.redirect_stdout(io.StringIO()):  # verdicts are all that may be printed
        code = pytest.main([*OPTIONS, f"--rootdir={course.root}", *files], [checks])
    if code == pytest.ExitCode.INTERRUPTED and not checks.fault:
        raise KeyboardInterrupt
    if code in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        checks.fault = checks.fault or f"pytest ended with exit code {code}"
    return checks.verdicts()
