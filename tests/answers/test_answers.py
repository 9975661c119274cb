"""Every answer gets the verdict that it must get.

Answers run on three ranks or GPUs, where nearly all show what they are.  A wrong answer that three
do not give away runs on every number of them, as does the reference (``tests/exercises``).  Of the
declared mistakes with a wrong result two for each exercise run alone, as an answer of a learner's
does, and the others together with a few more.
"""

from collections.abc import Callable

import pytest

from multigpu.checking.verdicts import Verdict

from .stored import Answer, answers, quick_answers

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
    answer: Answer,
    verdict_on: Callable[..., Verdict],
    id_side_by_side: Callable[[Answer], str | None],
) -> None:
    alone = answer in QUICK or not answer.mistake
    if not alone and id_side_by_side(answer) == answer.message_id:
        return
    verdict = verdict_on(answer.exercise, answer.module, one_world=True)
    if not answer.is_right and verdict.message_id != answer.message_id:
        verdict = verdict_on(answer.exercise, answer.module)
    assert (verdict.status, verdict.message_id) == (answer.status, answer.message_id), (
        verdict.message
    )
