"""Answers that people wrote from the starters alone, before they had seen any check.

``first_runs/<writer>/<exercise>/<right|wrong>_<name>.py`` is one answer, kept as it was written;
its first line says what the writer had in mind.  ``first_runs/verdicts.csv`` records what the
checks said the first time, errors of the checks included, and what they have to say now.
"""

import csv
from pathlib import Path

import pytest

from .conftest import COURSE
from .harness import Mutant

FOLDER = Path(__file__).parent / "first_runs"
RECORDS = list(csv.DictReader((FOLDER / "verdicts.csv").read_text(encoding="utf-8").splitlines()))


def path_of(record: dict[str, str]) -> Path:
    function = record["exercise"].partition(".")[2]
    return FOLDER / record["writer"] / function / f"{record['answer']}.py"


@pytest.mark.parametrize(
    "record", RECORDS, ids=lambda r: f"{r['writer']}-{r['exercise']}-{r['answer']}"
)
def test_an_answer_written_from_the_starter_gets_its_verdict(record, verdict_on):
    module = record["exercise"].partition(".")[0]
    code = path_of(record).read_text(encoding="utf-8")
    answer = Mutant(record["exercise"], record["answer"], "", None, code)
    solution = (COURSE.solutions / f"{module}.py").read_text(encoding="utf-8")
    verdict = verdict_on(record["exercise"], answer.module(solution))
    assert (verdict.message_id or verdict.status) == record["now"], verdict.message


def test_every_answer_is_in_the_record():
    assert {path_of(record) for record in RECORDS} == set(FOLDER.glob("*/*/*.py"))


@pytest.mark.parametrize("exercise", sorted({record["exercise"] for record in RECORDS}))
def test_each_writer_wrote_right_and_wrong_ones(exercise):
    for writer in {record["writer"] for record in RECORDS}:
        own = [r for r in RECORDS if (r["exercise"], r["writer"]) == (exercise, writer)]
        assert sum(r["answer"].startswith("right") for r in own) >= 2
        assert sum(r["answer"].startswith("wrong") for r in own) >= 4
