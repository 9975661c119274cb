"""Every answer gets the verdict that it must get.

Answers run on three ranks or GPUs, where nearly all show what they are.  A wrong answer that three
do not give away runs on every number of them, as does the reference (``tests/exercises``).
"""

from collections.abc import Callable

import pytest

from multigpu.checking.verdicts import Verdict

from .stored import Answer, answers, quick_answers
from .table import PROPERTY

QUICK = {*quick_answers()}


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(
            answer,
            marks=() if answer in QUICK else pytest.mark.slow,
            id=f"{answer.exercise}-{answer.name}",
        )
        for answer in answers()
    ],
)
def test_an_answer_gets_its_verdict(
    answer: Answer, verdict_on: Callable[..., Verdict], record_property: Callable[..., None]
) -> None:
    verdict = verdict_on(answer.exercise, answer.module, one_world=True)
    if not answer.is_right and verdict.message_id != answer.message_id:
        verdict = verdict_on(answer.exercise, answer.module)
    record_property(PROPERTY, answer.record(verdict.message_id or verdict.status))
    assert (verdict.status, verdict.message_id) == (answer.status, answer.message_id), (
        verdict.message
    )
