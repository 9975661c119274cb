"""Every answer in this folder gets the verdict that it is marked with."""

from collections import Counter
from pathlib import Path

import pytest

from multigpu.checking.catalog import Catalog

from .conftest import COURSE
from .harness import mutants_in
from .table import PROPERTY

ANSWERS = [m for path in sorted(Path(__file__).parent.glob("*/*.py")) for m in mutants_in(path)]
EXERCISES = [exercise.name for exercise in Catalog(COURSE).exercises]


@pytest.mark.parametrize("mutant", ANSWERS, ids=lambda mutant: f"{mutant.exercise}-{mutant.name}")
def test_an_answer_gets_its_verdict(mutant, verdict_on, record_property):
    solution = COURSE.solutions / f"{mutant.exercise.partition('.')[0]}.py"
    verdict = verdict_on(mutant.exercise, mutant.module(solution.read_text(encoding="utf-8")))
    came = (verdict.status, verdict.message_id)
    record_property(PROPERTY, mutant.record(verdict.message_id or verdict.status))
    assert came == (mutant.status, mutant.message_id), verdict.message


@pytest.mark.parametrize("exercise", EXERCISES)
def test_there_are_enough_answers(exercise):
    kinds = Counter(m.status == "pass" for m in ANSWERS if m.exercise == exercise)
    assert kinds[False] >= 6
    assert kinds[True] >= 3
