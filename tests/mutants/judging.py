"""Finds the stored answers, for the tests that give each of them to the checks."""

import csv
from functools import cache
from pathlib import Path

from .conftest import COURSE
from .harness import Mutant, mutants_in

HERE = Path(__file__).parent
FIRST_RUNS = HERE / "first_runs"


@cache
def mutants() -> list[Mutant]:
    """The marked answers to all exercises."""
    files = sorted(HERE.glob("*/*.py"))
    return [mutant for path in files for mutant in mutants_in(path)]


def mutant_of(exercise: str, name: str) -> Mutant:
    """One marked answer to an exercise."""
    (found,) = [m for m in mutants() if (m.exercise, m.name) == (exercise, name)]
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
    """The answer of a first run."""
    code = path_of(record).read_text(encoding="utf-8")
    return Mutant(record["exercise"], record["answer"], "", None, code)


def path_of(record: dict[str, str]) -> Path:
    """The file of a first run's answer."""
    folder = record["exercise"].replace(".", "/")
    return FIRST_RUNS / record["writer"] / folder / f"{record['answer']}.py"
