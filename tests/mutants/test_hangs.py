"""Answers to the exercises of hangs get the verdicts that they must get."""

import re

import pytest

from .conftest import COURSE
from .judging import answers_of, enough_answers_of

test_an_answer_gets_its_verdict = answers_of("hangs")
test_there_are_enough_answers = enough_answers_of("hangs")


@pytest.mark.parametrize(
    ("function", "status"),
    [
        ("rank_zero_metric", "hang"),
        ("uneven_batches", "hang"),
        ("reordered_reductions", "wrong"),
        ("early_stop", "hang"),
    ],
)
def test_the_starter_is_refused_with_rank_and_line(function, status, verdict_on):
    starter = COURSE.broken("hangs").read_text(encoding="utf-8")
    verdict = verdict_on(f"hangs.{function}", starter)
    assert verdict.status == status
    assert re.search(r"ranks? \d.*hangs\.py:\d+", verdict.message)
