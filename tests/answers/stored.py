"""Answers that a learner could write, and the verdict that each must get.

The declarations in ``tests/exercises`` hold their mistakes and some right answers.  The files here
hold what adds to that: ``<module>/<exercise>.py`` has right answers in other styles, and wrong ones
that no declared mistake describes.  Each answer is a cell of such a file:

    # %% rounds_up_with_ceil: pass
    # %% shuffles_the_rows: wrong wrong_values

The line says its name, its status, and for a wrong one its message id.  What stands above the first
cell, the imports, belongs to every answer; ``from exercises.sharding.wrong_steps import Flat`` puts
the definition in that file of the declarations there.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from multigpu.checking.catalog import Catalog, find_course
from multigpu.checking.declaration import Mistake, Program, answered, load, program_text

HERE = Path(__file__).resolve().parent
COURSE = find_course(HERE)
CELL = re.compile(r"^# %% (\w+): (\w+)(?: ([\w.]+))?\n", re.MULTILINE)
DECLARED = re.compile(r"^from exercises\.(\w+)\.(\w+) import (.+)\n", re.MULTILINE)


@dataclass(frozen=True)
class Answer:
    """A program, and the verdict that it must get."""

    exercise: str  # "data_parallel.split"
    name: str
    program: Program | str  # the text of a declared one is made when it is needed
    status: str
    message_id: str | None  # None for a right one
    mistake: Mistake | None = None  # if it is declared as one

    @property
    def is_right(self) -> bool:
        return self.status == "pass"

    @property
    def module(self) -> str:
        """The solution's module with this answer in the place of its own."""
        solution = COURSE.solutions / f"{self.exercise.partition('.')[0]}.py"
        text = self.program if isinstance(self.program, str) else self.program.text
        return answered(solution.read_text(encoding="utf-8"), self.exercise, text)


@cache
def answers() -> list[Answer]:
    """Those of the declarations and the stored ones, by exercise."""
    found = []
    for exercise in Catalog(COURSE).exercises:
        declaration = load(COURSE.check_file(exercise.chapter.module, exercise.function))
        name = exercise.name
        found += [Answer(name, each.name, each, "pass", None) for each in declaration.rights]
        found += [
            Answer(name, each.program.name, each.program, each.status, each.id, each)
            for each in declaration.mistakes
        ]
        found += stored(exercise.name)
    return found


def stored(exercise: str) -> Iterator[Answer]:
    """The answers in the file of an exercise; there may be none."""
    path = HERE / f"{exercise.replace('.', '/')}.py"
    head, *cells = CELL.split(path.read_text(encoding="utf-8")) if path.is_file() else [""]
    head = DECLARED.sub(definitions, head)
    for name, status, message_id, text in zip(*[iter(cells)] * 4, strict=True):
        yield Answer(exercise, name, f"{head}\n{text}", status, message_id)


def definitions(imported: re.Match[str]) -> str:
    """The text of what a file of answers imports from a file of declarations."""
    module, file, names = imported.groups()
    path = COURSE.check_file(module, file)
    return "\n\n".join(program_text(path, name, name) for name in names.split(", ")) + "\n"


def answer_to(exercise: str, name: str) -> Answer:
    """One answer."""
    (found,) = [a for a in answers() if (a.exercise, a.name) == (exercise, name)]
    return found


# --- what a quick run tries ----------------------------------------------------------------------


@cache
def quick_answers() -> list[Answer]:
    """Of each exercise one right answer and two wrong ones, always the same.

    Of an exercise whose files are not those of the main branch, all.
    """
    chosen, changed = [], changed_exercises()
    for exercise in [each.name for each in Catalog(COURSE).exercises]:
        own = [answer for answer in answers() if answer.exercise == exercise]
        right = [answer for answer in own if answer.is_right]
        wrong = [answer for answer in own if not answer.is_right]
        chosen += own if exercise in changed else [*right[:1], *wrong[:2]]
    return chosen


def changed_exercises() -> set[str]:
    """The exercises whose declaration, reference or stored answers differ from the main branch."""
    changed = set()
    for path in map(Path, changed_files()):
        for exercise in Catalog(COURSE).exercises:
            if belongs(path, exercise.chapter.module, exercise.function):
                changed.add(exercise.name)
    return changed


def belongs(path: Path, module: str, function: str) -> bool:
    """Whether a file decides about an exercise; a helper of a module's checks about all of it."""
    if path.parts[:1] == ("solutions",):
        return path.stem == module
    if path.parts[:2] == ("tests", "exercises"):
        others = {e.function for e in Catalog(COURSE).exercises if e.function != function}
        return path.parts[2] == module and path.stem not in others
    return path.parts == ("tests", "answers", module, f"{function}.py")


def changed_files() -> list[str]:
    """What differs from where this branch left main, uncommitted files included."""
    if shutil.which("git") is None:
        return []
    for main in ("origin/main", "main", "HEAD"):
        base = git("merge-base", "HEAD", main)
        if base:
            tracked = git("diff", "--name-only", base[0])
            return [*tracked, *git("ls-files", "--others", "--exclude-standard")]
    return []  # no repository: somebody has unpacked an archive


def git(*arguments: str) -> list[str]:
    """The lines that git prints; none where it fails."""
    done = subprocess.run(
        ["git", *arguments], cwd=COURSE.root, capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines() if done.returncode == 0 else []
