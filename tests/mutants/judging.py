"""Finds the stored answers, and chooses those that a quick run tries."""

import csv
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from multigpu.checking.catalog import Catalog
from multigpu.checking.declaration import load

from .conftest import COURSE
from .harness import Mutant, mutants_in

HERE = Path(__file__).parent
FIRST_RUNS = HERE / "first_runs"


@cache
def answers() -> list[Mutant]:
    """All stored answers: those of the declarations, the marked ones, and those of first runs."""
    marked = [mutant for path in sorted(HERE.glob("*/*.py")) for mutant in mutants_in(path)]
    return [*declared(), *marked, *map(first_run_as_mutant, first_runs())]


def declared() -> Iterator[Mutant]:
    """The mistakes and the right answers of every declared exercise."""
    for exercise in Catalog(COURSE).exercises:
        path = COURSE.check_file(exercise.chapter.module, exercise.function)
        if path.stem == exercise.function:
            declaration = load(path)
            for program in declaration.rights:
                yield Mutant(exercise.name, program.name, "pass", None, program.text)
            for each in declaration.mistakes:
                program = each.program
                yield Mutant(exercise.name, program.name, each.status, each.id, program.text)


@cache
def quick_answers() -> list[Mutant]:
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
    """The exercises whose check, reference or stored answers differ from the main branch."""
    changed = set()
    for path in map(Path, changed_files()):
        for exercise in Catalog(COURSE).exercises:
            module, function = exercise.name.split(".")
            if belongs(path, module, function):
                changed.add(exercise.name)
    return changed


def belongs(path: Path, module: str, function: str) -> bool:
    """Whether a file decides about an exercise; a helper of a module's checks about all of it."""
    if path.parts[:1] == ("solutions",):
        return path.stem == module
    if path.parts[:2] == ("tests", "exercises"):
        others = {e.function for e in Catalog(COURSE).exercises if e.function != function}
        return path.parts[2] == module and path.stem.removeprefix("test_") not in others
    if path.parts[:2] == ("tests", "mutants"):
        return module in path.parts and (path.stem == function or function in path.parts)
    return False


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


def answer_to(exercise: str, name: str) -> Mutant:
    """One stored answer."""
    (found,) = [each for each in answers() if (each.exercise, each.name) == (exercise, name)]
    return found


@cache
def solution_of(exercise: str) -> str:
    """The text of the module with the reference answer."""
    return (COURSE.solutions / f"{exercise.partition('.')[0]}.py").read_text(encoding="utf-8")


@cache
def first_runs() -> list[dict[str, str]]:
    """The records of first runs."""
    text = (FIRST_RUNS / "verdicts.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def first_run_as_mutant(record: dict[str, str]) -> Mutant:
    """The answer of a first run; a message id tells its status, too."""
    code, now = path_of(record).read_text(encoding="utf-8"), record["now"]
    status, message_id = ("pass", None) if now == "pass" else (None, now)
    name = f"{record['writer']}-{record['answer']}"
    return Mutant(record["exercise"], name, status, message_id, code)


def path_of(record: dict[str, str]) -> Path:
    """The file of a first run's answer."""
    folder = record["exercise"].replace(".", "/")
    return FIRST_RUNS / record["writer"] / folder / f"{record['answer']}.py"
