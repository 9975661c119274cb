"""Makes the tests of a module's answers.

Each module has a file of its own, test_<module>.py, so that several processes share the work.
"""

import csv
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from multigpu.checking.catalog import Catalog
from multigpu.checking.verdicts import Verdict

from .conftest import COURSE
from .harness import Mutant, mutants_in
from .table import PROPERTY

HERE = Path(__file__).parent
FIRST_RUNS = HERE / "first_runs"
Test = Callable[..., None]


def answers_of(module: str) -> Test:
    """Each answer to the exercises of a module gets the verdict that it is marked with."""

    @pytest.mark.parametrize("mutant", mutants_of(module), ids=lambda m: f"{m.exercise}-{m.name}")
    def test(mutant: Mutant, verdict_on: Callable[..., Verdict], record_property: Test) -> None:
        verdict = verdict_on(mutant.exercise, mutant.module(solution_of(module)))
        came = (verdict.status, verdict.message_id)
        record_property(PROPERTY, mutant.record(verdict.message_id or verdict.status))
        assert came == (mutant.status, mutant.message_id), verdict.message

    return test


def enough_answers_of(module: str, *, fewer: tuple[str, ...] = ()) -> Test:
    """There are at least six wrong and three right answers to each exercise of a module.

    Those in ``fewer`` are long to write: at least four and two.
    """
    exercises = [e.name for e in Catalog(COURSE).exercises if e.chapter.module == module]

    @pytest.mark.parametrize("exercise", exercises)
    def test(exercise: str) -> None:
        kinds = Counter(m.status == "pass" for m in mutants_of(module) if m.exercise == exercise)
        wanted = (4, 2) if exercise in fewer else (6, 3)
        assert kinds[False] >= wanted[0]
        assert kinds[True] >= wanted[1]

    return test


def first_runs_of(module: str) -> Test:
    """Each answer that somebody wrote from the starter of a module gets the recorded verdict."""
    own = [record for record in first_runs() if module_of(record) == module]

    @pytest.mark.parametrize(
        "record", own, ids=lambda r: f"{r['writer']}-{r['exercise']}-{r['answer']}"
    )
    def test(record: dict[str, str], verdict_on: Callable[..., Verdict]) -> None:
        code = path_of(record).read_text(encoding="utf-8")
        answer = Mutant(record["exercise"], record["answer"], "", None, code)
        verdict = verdict_on(record["exercise"], answer.module(solution_of(module)))
        assert (verdict.message_id or verdict.status) == record["now"], verdict.message

    return test


def mutants_of(module: str) -> list[Mutant]:
    """The marked answers in a module's folder."""
    return [mutant for path in sorted((HERE / module).glob("*.py")) for mutant in mutants_in(path)]


def solution_of(module: str) -> str:
    """The text of the reference answers."""
    return (COURSE.solutions / f"{module}.py").read_text(encoding="utf-8")


def first_runs() -> list[dict[str, str]]:
    """The records of first runs."""
    text = (FIRST_RUNS / "verdicts.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def module_of(record: dict[str, str]) -> str:
    """The module of the exercise that a record is about."""
    return record["exercise"].partition(".")[0]


def path_of(record: dict[str, str]) -> Path:
    """The file of a first run's answer."""
    folder = record["exercise"].replace(".", "/")
    return FIRST_RUNS / record["writer"] / folder / f"{record['answer']}.py"
