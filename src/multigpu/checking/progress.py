"""How far the learner is: the last verdict on each exercise, kept in ``.multigpu``.

A verdict holds as long as the exercise's code and its checks are the same.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import decode_source
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from multigpu.checking.catalog import Catalog, Course, Exercise
from multigpu.checking.source import digest_of_checks, fingerprint, written_in
from multigpu.checking.verdicts import Verdict

State = Literal["pass", "failed", "unchecked", "starter"]
WAIT = 5.0  # seconds for the lock, which others hold for an instant


@dataclass(frozen=True)
class Progress:
    """The learner's files in one copy of the course, their verdicts, and which hints were shown."""

    course: Course

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
        try:
            written = exercise.function in written_in(source, module, self.course)
        except (SyntaxError, ValueError):
            return "unchecked"
        status = self.status(exercise)
        if not written:  # a starter that is broken code may have been checked as it is
            return "failed" if status in ("hang", "wrong") else "starter"
        if status is None:
            return "unchecked"
        return "pass" if status == "pass" else "failed"

    def status(self, exercise: Exercise) -> str | None:
        """The status of the last verdict on the code and the checks as they are now."""
        noted = self._notes["verdicts"].get(exercise.name, {})
        present = self._judged(exercise, self._source(exercise))
        return noted["status"] if present.items() <= noted.items() else None

    def sources(self) -> dict[str, str]:
        """The learner's files by name, as they are now: what a check is about to look at."""
        return {e.file: self._source(e) for e in self.catalog.exercises}

    def note(self, verdicts: Iterable[Verdict], sources: Mapping[str, str]) -> None:
        """Remember verdicts on ``sources``; what is saved during a check has none yet."""
        noted = {}
        for verdict in verdicts:
            if verdict.status == "checker_fault":  # it says nothing about the learner's code
                continue
            exercise = self.catalog.one(verdict.exercise)
            judged = self._judged(exercise, sources[exercise.file])
            noted[verdict.exercise] = {"status": verdict.status, **judged}
        self._save("verdicts", noted)

    def hints_shown(self, exercise: Exercise) -> int:
        """How many hints the learner has seen."""
        return int(self._notes["hints"].get(exercise.name, 0))

    def note_hints(self, exercise: Exercise, number: int) -> None:
        """Remember how many hints have been shown."""
        self._save("hints", {exercise.name: number})

    def _judged(self, exercise: Exercise, source: str) -> dict[str, str | None]:
        """What a verdict holds for: hashes of the exercise's code and of all that checks it."""
        checks = digest_of_checks(self.course, exercise.chapter.module)
        return {"fingerprint": fingerprint(source, exercise.function), "checks": checks}

    def _source(self, exercise: Exercise) -> str:
        try:
            return decode_source(self.file(exercise).read_bytes())
        except (OSError, UnicodeDecodeError, SyntaxError):  # the last: an unknown encoding
            return ""

    @property
    def _path(self) -> Path:
        return self.course.state / "progress.json"

    @property
    def _notes(self) -> dict[str, dict[str, Any]]:
        """What is noted now: read each time, because another command may have added to it."""
        try:
            notes = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # none yet, or broken: then the checks are run again
            notes = {}
        return {"verdicts": notes.get("verdicts", {}), "hints": notes.get("hints", {})}

    def _save(self, part: str, noted: Mapping[str, Any]) -> None:
        """Add to one part of the notes; what another command noted meanwhile stays."""
        self._path.parent.mkdir(exist_ok=True)
        lock = FileLock(self._path.with_suffix(".lock"))
        # Some network drives have no locks, and a killed process may leave one behind. Without it
        # what another command notes in the same instant may be lost: better than no verdict.
        with contextlib.suppress(OSError):  # such as a Timeout
            lock.acquire(timeout=WAIT)
        try:
            notes = self._notes
            notes[part].update(noted)
            new = self._path.with_suffix(f".{os.getpid()}")  # of this process, if there is no lock
            try:
                new.write_text(json.dumps(notes, indent=1), encoding="utf-8")
                new.replace(self._path)
            finally:
                new.unlink(missing_ok=True)
        finally:
            lock.release()
