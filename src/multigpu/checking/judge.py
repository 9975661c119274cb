"""Runs the checks of some exercises in this process, for the command and for notebooks."""

import contextlib
import gc
import io
import os
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

from multigpu.checking.catalog import Exercise
from multigpu.checking.places import Course
from multigpu.checking.verdicts import Verdict
from multigpu.checking.warm import WarmServer

OPTIONS = (
    *("-c", os.devnull, "--noconftest", "--import-mode=importlib", "--assert=plain"),
    *("-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:logging", "-p", "no:doctest"),
    *("-p", "no:junitxml", "-p", "no:faulthandler", "-p", "no:unraisableexception"),
    *("-p", "no:threadexception", "-p", "no:pastebin", "-p", "no:stepwise", "-p", "no:unittest"),
    *("-p", "no:setuponly", "-p", "no:setupplan", "-p", "no:legacypath", "-p", "no:subtests"),
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
    one_world: bool = False,
) -> list[Verdict]:
    """The same with a server that runs already, and goes on running.

    With ``first_only`` an exercise's first failing check ends it, which is quicker.  With
    ``one_world`` a check that runs on several numbers of ranks or GPUs runs on one of them.
    """
    import pytest

    from multigpu.checking import plugin

    checks = plugin.Checks(
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
        with own_settings(), quick_imports(), quiet, own_modules(course):
            code = pytest.main([*OPTIONS, *places_for(course), *files], [plugin, checks])
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
def quick_imports() -> Iterator[None]:
    """Look for no garbage while torch is imported: there is none, and it takes its time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


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
