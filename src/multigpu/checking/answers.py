"""Checks and answers for notebooks.

    from multigpu.checking.answers import check, use
    split = use("data_parallel.split")    # says "split: yours" or "split: the reference (...)"
    check("data_parallel.split")          # the same as `multigpu check data_parallel.split`

A notebook takes your own function where it passes its check, else the reference. The verdict is the
one that `multigpu check` remembers; where there is none on your code as it is now, it is asked for.

The checks never run your code inside the judging process. A notebook does: your function, once it
passes, runs in the kernel, so that you can look at what it does.

With `MULTIGPU_ANSWERS=reference` in the environment the reference is always taken; so do the
pages of the site.
"""

import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

from multigpu.checking.catalog import Course, Exercise, this_course
from multigpu.checking.progress import Progress
from multigpu.checking.source import definitions

# A kernel asks its children for colors, and perhaps for warnings; neither is wanted here.
OF_THE_KERNEL = {"FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "PYTHONWARNINGS"}
SECONDS = 300  # the checks have limits of their own; this is for a machine that makes no progress


class Chosen(NamedTuple):
    """A function of the exercises, whose it is, and why."""

    function: Callable[..., Any]
    whose: str  # "yours" or "the reference"
    reason: str = ""


def use(name: str) -> Callable[..., Any]:
    """Return the function for an exercise such as `data_parallel.split`, and say whose it is."""
    answer = yours_or_reference(name)
    reason = f" ({answer.reason})" if answer.reason else ""
    print(f"{name.rpartition('.')[2]}: {answer.whose}{reason}")
    return answer.function


def starter(name: str) -> Callable[..., Any]:
    """Return the broken function that an exercise of `hangs` starts with.

    Raises ValueError if the exercise does not start with broken code.
    """
    module, _, function = name.rpartition(".")
    path = this_course().broken(module)
    if not path.is_file() or function not in definitions(path.read_text("utf-8")):
        raise ValueError(f"{name!r} does not start with broken code; those of hangs.py do")
    return cast(Callable[..., Any], getattr(_load(path), function))


def yours_or_reference(name: str, *, course: Course | None = None) -> Chosen:
    """Find the function for an exercise, by its full name `module.function`.

    It is yours if you have written it and it passes its check as the file is now. The check runs
    only if there is something to check, and again only after the file has changed.

    Raises ValueError if there is no such exercise.
    """
    progress = Progress(course or this_course())
    exercise = next((e for e in progress.catalog.exercises if e.name == name), None)
    if exercise is None:
        raise ValueError(f"there is no exercise {name!r}; `multigpu list` shows all of them")
    reason = ""
    if os.environ.get("MULTIGPU_ANSWERS") != "reference":
        reason = _why_not_yours(exercise, progress)
        if not reason:
            return Chosen(getattr(_load(progress.file(exercise)), exercise.function), "yours")
    reference = _load(progress.course.solutions / exercise.file)
    return Chosen(getattr(reference, exercise.function), "the reference", reason)


def check(name: str) -> None:
    """Run `multigpu check NAME` and print what it says, then the verdict in one line.

    The notebook goes on after an exercise that does not pass. Raises RuntimeError if
    there is no such exercise, or if the checker itself fails.
    """
    done = _multigpu_check(this_course(), name)
    print(done.stdout.strip())
    print(f"\n{name}: {'passed' if done.returncode == 0 else 'not passed yet'}")


def _why_not_yours(exercise: Exercise, progress: Progress) -> str:
    """Why the learner's function cannot be used; empty if it can."""
    path = progress.file(exercise)
    if not path.is_file():
        return f"there is no {path.name} in exercises"
    try:
        ast.parse(path.read_bytes())
    except SyntaxError as error:
        return f"yours has a syntax error in line {error.lineno}"
    state = progress.state(exercise)
    if state == "unchecked":  # it is checked with all of the file that has no verdict either
        chapter = [e for e in progress.catalog.exercises if e.chapter == exercise.chapter]
        names = [e.name for e in chapter if progress.state(e) == "unchecked"]
        print(f"checking what you wrote in {path.name} ...", flush=True)  # takes some seconds
        _multigpu_check(progress.course, *names)
        state = progress.state(exercise)
    if state == "starter":
        return "yours is not written yet"
    status = progress.status(exercise)
    return "" if status == "pass" else f"yours does not pass its check yet: {status}"


def _multigpu_check(course: Course, *names: str) -> subprocess.CompletedProcess[str]:
    """Run `multigpu check`.  Raises RuntimeError if it cannot judge."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_THE_KERNEL}
    environment |= {"NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-m", "multigpu", "check", *names],
        cwd=course.root, env=environment, timeout=SECONDS, text=True, encoding="utf-8",
        stdin=subprocess.DEVNULL, capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 1):
        said = (done.stdout.strip() + "\n" + done.stderr.strip())[-1000:]
        command = f"multigpu check {' '.join(names)}"
        raise RuntimeError(f"`{command}` ended with exit code {done.returncode}: {said}")
    return done


def _load(path: Path) -> Any:
    """Import a file as it is now, under a name that no other module has."""
    name = f"multigpu_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a module up by its name
    spec.loader.exec_module(module)
    return module
