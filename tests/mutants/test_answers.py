"""Every stored answer gets the verdict that it must get.

``<module>/<exercise>.py`` holds answers marked ``@right`` or ``@wrong("message id")``.
``first_runs/<writer>/<module>/<exercise>/<right|wrong>_<name>.py`` holds one answer that somebody
wrote from the starter alone, kept as it was written; ``first_runs/verdicts.csv`` records what the
checks said the first time, and what they have to say now.

Answers run on three ranks, where nearly all show what they are; on every number of ranks runs the
reference (``tests/exercises``), and a wrong answer that three ranks do not give away.
"""

from collections.abc import Callable

import pytest

from multigpu.checking.verdicts import Verdict

from .harness import Mutant
from .judging import FIRST_RUNS, answers, first_runs, path_of, quick_answers, solution_of
from .table import PROPERTY

QUICK = {(answer.exercise, answer.name) for answer in quick_answers()}


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(
            answer,
            marks=() if (answer.exercise, answer.name) in QUICK else pytest.mark.slow,
            id=f"{answer.exercise}-{answer.name}",
        )
        for answer in answers()
    ],
)
def test_an_answer_gets_its_verdict(
    answer: Mutant, verdict_on: Callable[..., Verdict], record_property: Callable[..., None]
) -> None:
    source = answer.module(solution_of(answer.exercise))
    verdict = verdict_on(answer.exercise, source, one_world=True)
    if not answer.is_right and verdict.message_id != answer.message_id:
        verdict = verdict_on(answer.exercise, source)
    record_property(PROPERTY, answer.record(verdict.message_id or verdict.status))
    assert verdict.message_id == answer.message_id, verdict.message
    assert answer.status in (verdict.status, None), verdict.message


def test_every_answer_of_a_first_run_is_in_the_record() -> None:
    assert {path_of(run) for run in first_runs()} == set(FIRST_RUNS.glob("*/*/*/*.py"))
