"""What of the course is yours: the verdicts on your code, and, for notebooks, your functions.

    from multigpu.checking.yours import check, use
    split = use("data_parallel.split")    # says "split: yours" or "split: the reference (...)"
    check("data_parallel.split")          # the same as `multigpu check data_parallel.split`

A notebook takes your own function where it passes its check, else the reference.

The checks never run your code inside the judging process. A notebook does: your function, once it
passes, runs in the kernel, so that you can look at what it does.

With `MULTIGPU_ANSWERS=reference` in the environment the reference is always taken; so do the
pages of the site.
"""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import decode_source
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from multigpu.checking.catalog import Catalog, Course, Exercise, find_course, this_course
from multigpu.checking.source import definitions, fingerprint, written_in
from multigpu.checking.verdicts import Verdict

# A kernel asks its children for colours, and perhaps for warnings; here nobody wants them.
OF_THE_KERNEL = {"FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "PYTHONWARNINGS"}
SECONDS = 300  # the checks have limits of their own; this is for a machine that stands still


State = Literal["pass", "failed", "written", "starter"]


@dataclass(frozen=True)
class Progress:
    """The learner's files in one copy of the course, and how far they are.

    ``.multigpu`` keeps the last verdicts, and which hints were shown.  A verdict holds as long as
    the exercise's code and its checks are the same.
    """

    course: Course

    @classmethod
    def here(cls) -> "Progress":
        """In the course around the current folder.  Raises CourseNotFound."""
        return cls(find_course(Path.cwd()))

    @cached_property
    def catalog(self) -> Catalog:
        """All exercises."""
        return Catalog(self.course)

    def to_do(self) -> list[Exercise]:
        """The exercises that have no verdict ``pass`` on their present code."""
        return [e for e in self.catalog.exercises if self.state(e) != "pass"]

    def chosen(self, name: str | None) -> Exercise | None:
        """The exercise of this name, else the next one; None when all are done.

        The name of a file means the first exercise in it that is not done.
        """
        named = self.catalog.exercises if name is None else self.catalog.find(name)
        if name is not None and len(named) == 1:
            return named[0]
        return next((exercise for exercise in self.to_do() if exercise in named), None)

    def file(self, exercise: Exercise) -> Path:
        """The learner's file."""
        return self.course.exercises / exercise.file

    def place(self, exercise: Exercise) -> str:
        """``exercises/data_parallel.py``, as seen from the current folder."""
        path, here = self.file(exercise), Path.cwd()
        return str(path.relative_to(here) if path.is_relative_to(here) else path)

    def state(self, exercise: Exercise) -> State:
        """How far an exercise is: its last verdict, or what can be seen without running it."""
        source, module = self._source(exercise), exercise.chapter.module
        noted = self._notes["verdicts"].get(exercise.name, {})
        try:
            written = exercise.function in written_in(source, module, self.course)
        except (SyntaxError, ValueError):
            return "written"
        checked = (
            bool(noted)
            and noted["fingerprint"] == fingerprint(source, exercise.function)
            and noted.get("checks") == self._checks_of(exercise)
        )
        if not written:  # a starter that is broken code may have been checked as it is
            return "failed" if checked and noted["status"] in ("hang", "wrong") else "starter"
        if not checked:
            return "written"
        return "pass" if noted["status"] == "pass" else "failed"

    def sources(self) -> dict[str, str]:
        """The learner's files by name, as they are now: what a check is about to look at."""
        return {e.file: self._source(e) for e in self.catalog.exercises}

    def note(self, verdicts: Iterable[Verdict], sources: Mapping[str, str]) -> None:
        """Remember verdicts on ``sources``; what is saved during a check has none yet."""
        for verdict in verdicts:
            exercise = self.catalog.one(verdict.exercise)
            self._notes["verdicts"][verdict.exercise] = {
                "status": verdict.status,
                "fingerprint": fingerprint(sources[exercise.file], exercise.function),
                "checks": self._checks_of(exercise),
            }
        self._save()

    def hints_shown(self, exercise: Exercise) -> int:
        """How many hints the learner has seen."""
        return int(self._notes["hints"].get(exercise.name, 0))

    def note_hints(self, exercise: Exercise, number: int) -> None:
        """Remember how many hints have been shown."""
        self._notes["hints"][exercise.name] = number
        self._save()

    def _checks_of(self, exercise: Exercise) -> str:
        """The same for the same files of checks: an update may have made them stricter."""
        folder, digest = self.course.checks / exercise.chapter.module, hashlib.sha256()
        for path in sorted(folder.glob("*.py")):
            digest.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
        return digest.hexdigest()

    def _source(self, exercise: Exercise) -> str:
        try:
            return decode_source(self.file(exercise).read_bytes())
        except (OSError, UnicodeDecodeError, SyntaxError):  # the last: an unknown encoding
            return ""

    @property
    def _path(self) -> Path:
        return self.course.state / "progress.json"

    @cached_property
    def _notes(self) -> dict[str, dict[str, Any]]:
        try:
            notes = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # none yet, or broken: then the checks are run again
            notes = {}
        return {"verdicts": notes.get("verdicts", {}), "hints": notes.get("hints", {})}

    def _save(self) -> None:
        self._path.parent.mkdir(exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._notes, indent=1), encoding="utf-8")
        new.replace(self._path)


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

    It is yours if you have written it and it passes its check as the file stands now. The check
    runs only if there is something to check, and again only after the file has changed.

    Raises ValueError if there is no such exercise.
    """
    course = course or this_course()
    module, _, function = name.rpartition(".")
    reference = course.solutions / f"{module}.py"
    if not reference.is_file() or function not in definitions(reference.read_text("utf-8")):
        raise ValueError(f"there is no exercise {name!r}; `multigpu list` shows all of them")
    if os.environ.get("MULTIGPU_ANSWERS") == "reference":
        return Chosen(getattr(_load(reference), function), "the reference")
    reason = _why_not_yours(name, course)
    if reason:
        return Chosen(getattr(_load(reference), function), "the reference", reason)
    return Chosen(getattr(_load(course.exercises / f"{module}.py"), function), "yours")


def check(name: str) -> None:
    """Run `multigpu check NAME` and print what it says, then the verdict in one line.

    An exercise that does not pass is no error here: the notebook goes on. Raises RuntimeError if
    there is no such exercise, or if the checker itself fails.
    """
    done = _run(_multigpu("check", name), this_course())
    print(done.stdout.strip())
    if done.returncode not in (0, 1):
        raise RuntimeError(
            f"`multigpu check {name}` ended with exit code {done.returncode}: {_last(done.stderr)}"
        )
    print(f"\n{name}: {'passed' if done.returncode == 0 else 'not passed yet'}")


def _why_not_yours(name: str, course: Course) -> str:
    """Why the learner's function cannot be used; empty if it can."""
    module, _, function = name.rpartition(".")
    path = course.exercises / f"{module}.py"
    if not path.is_file():
        return f"there is no {path.name} in exercises"
    source = path.read_text("utf-8")
    try:
        written = written_in(source, module, course)
    except SyntaxError as error:
        return f"yours has a syntax error in line {error.lineno}"
    if function not in written:
        return "yours is not written yet"
    status = _statuses(course, module, source).get(name, "missing")
    return "" if status == "pass" else f"yours does not pass its check yet: {status}"


@lru_cache(maxsize=8)
def _statuses(course: Course, module: str, source: str) -> dict[str, str]:
    """The verdict on each function of a module that is more than a starter, all in one run.

    `source` is the text of the learner's file: part of the key, so that a change is seen.
    """
    reference = definitions((course.solutions / f"{module}.py").read_text("utf-8"))
    exercises = {name for name in reference if not name.startswith("_")}  # the rest are helpers
    names = [f"{module}.{name}" for name in written_in(source, module, course) if name in exercises]
    print(f"checking what you wrote in {module}.py ...", flush=True)  # takes some seconds
    done = _run(_multigpu("check", *names, "--json"), course)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"the check of {', '.join(names)} failed: {_last(done.stderr)}")
    return {verdict["exercise"]: verdict["status"] for verdict in json.loads(done.stdout)}


def _multigpu(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "multigpu", *arguments]


def _run(command: list[str], course: Course) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in OF_THE_KERNEL}
    environment |= {"NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        command, cwd=course.root, env=environment, timeout=SECONDS, text=True, encoding="utf-8",
        stdin=subprocess.DEVNULL, capture_output=True, check=False,
    )  # fmt: skip


def _last(words: str) -> str:
    """The end of an error output: where the reason stands."""
    return words.strip()[-1000:]


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
