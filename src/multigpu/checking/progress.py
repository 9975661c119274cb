"""What the command remembers in ``.multigpu``: the last verdicts, and which hints were shown.

A verdict holds as long as the exercise's code is the same.  Its code is the function, everything in
the module that it reaches, and the imports; comments and blank lines do not count.
"""

import ast
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import decode_source
from pathlib import Path
from typing import Any, Literal

from multigpu.checking.catalog import Catalog, Exercise
from multigpu.checking.names import reached
from multigpu.checking.places import Course
from multigpu.checking.starters import written_in
from multigpu.checking.verdicts import Verdict

State = Literal["pass", "failed", "written", "starter"]


def fingerprint(source: str, function: str) -> str | None:
    """The same for the same code; None when there is no such function to speak of."""
    try:
        tree = ast.parse(source)
        code = reached(tree, function)
        if not code:
            return None
        imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        text = "\n".join(ast.dump(node) for node in [*imports, *code])
    except (SyntaxError, ValueError, RecursionError):  # the last: nested too deep
        return None
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Progress:
    """The learner's progress in one copy of the course."""

    course: Course

    def state(self, exercise: Exercise) -> State:
        """How far an exercise is: its last verdict, or what can be seen without running it."""
        source, module = self._source(exercise), exercise.chapter.module
        noted = self._notes["verdicts"].get(exercise.name, {})
        try:
            written = exercise.function in written_in(source, module, self.course)
        except (SyntaxError, ValueError):
            return "written"
        checked = bool(noted) and noted["fingerprint"] == fingerprint(source, exercise.function)
        if not written:  # a starter that is broken code may have been checked as it is
            return "failed" if checked and noted["status"] in ("hang", "wrong") else "starter"
        if not checked:
            return "written"
        return "pass" if noted["status"] == "pass" else "failed"

    def sources(self) -> dict[str, str]:
        """The learner's files by name, as they are now: what a check is about to look at."""
        return {e.file: self._source(e) for e in Catalog(self.course).exercises}

    def note(self, verdicts: Iterable[Verdict], sources: Mapping[str, str]) -> None:
        """Remember verdicts on ``sources``; what is saved during a check has none yet."""
        catalog = Catalog(self.course)
        for verdict in verdicts:
            exercise = catalog.one(verdict.exercise)
            self._notes["verdicts"][verdict.exercise] = {
                "status": verdict.status,
                "fingerprint": fingerprint(sources[exercise.file], exercise.function),
            }
        self._save()

    def hints_shown(self, exercise: Exercise) -> int:
        """How many hints the learner has seen."""
        return int(self._notes["hints"].get(exercise.name, 0))

    def note_hints(self, exercise: Exercise, number: int) -> None:
        """Remember how many hints have been shown."""
        self._notes["hints"][exercise.name] = number
        self._save()

    def _source(self, exercise: Exercise) -> str:
        try:
            return decode_source((self.course.exercises / exercise.file).read_bytes())
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
