"""Answers that people wrote from the starters alone, before they had seen any check.

``first_runs/<writer>/<module>/<exercise>/<right|wrong>_<name>.py`` is one answer, kept as it was
written; its first line says what the writer had in mind.  ``first_runs/verdicts.csv`` records what
the checks said the first time, errors of the checks included, and what they have to say now.
``test_first_runs_<module>.py`` runs them.
"""

import pytest

from multigpu.checking.catalog import Catalog

from .conftest import COURSE
from .judging import FIRST_RUNS, HERE, first_runs, module_of, path_of

RECORDS = first_runs()


def test_every_answer_is_in_the_record():
    assert {path_of(record) for record in RECORDS} == set(FIRST_RUNS.glob("*/*/*/*.py"))


@pytest.mark.parametrize("exercise", sorted({record["exercise"] for record in RECORDS}))
def test_each_writer_wrote_right_and_wrong_ones(exercise):
    about = [record for record in RECORDS if record["exercise"] == exercise]
    for writer in {record["writer"] for record in about}:
        own = [record["answer"] for record in about if record["writer"] == writer]
        assert sum(answer.startswith("right") for answer in own) >= 2
        assert sum(answer.startswith("wrong") for answer in own) >= 4


def test_every_module_has_its_file_of_tests():
    modules = {exercise.chapter.module for exercise in Catalog(COURSE).exercises}
    wanted = {f"test_{module}.py" for module in modules}
    wanted |= {f"test_first_runs_{module_of(record)}.py" for record in RECORDS}
    there = {path.name for path in HERE.glob("test_*.py")} - {"test_first_runs.py"}
    assert there == wanted
