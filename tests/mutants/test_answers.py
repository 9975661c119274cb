"""Every stored answer gets the verdict that it must get.

``<module>/<exercise>.py`` holds answers marked ``@right`` or ``@wrong("message id")``.
``first_runs/<writer>/<module>/<exercise>/<right|wrong>_<name>.py`` holds one answer that somebody
wrote from the starter alone, kept as it was written; ``first_runs/verdicts.csv`` records what the
checks said the first time, and what they have to say now.
"""

from collections.abc import Callable

import pytest

from multigpu.checking.verdicts import Verdict

from .judging import (
    FIRST_RUNS,
    first_run_as_mutant,
    first_runs,
    mutants,
    path_of,
    solution_of,
)
from .table import PROPERTY


@pytest.mark.parametrize("mutant", mutants(), ids=lambda m: f"{m.exercise}-{m.name}")
def test_an_answer_gets_its_verdict(
    mutant, verdict_on: Callable[..., Verdict], record_property
) -> None:
    verdict = verdict_on(mutant.exercise, mutant.module(solution_of(mutant.exercise)))
    record_property(PROPERTY, mutant.record(verdict.message_id or verdict.status))
    assert (verdict.status, verdict.message_id) == (mutant.status, mutant.message_id), (
        verdict.message
    )


@pytest.mark.parametrize(
    "run", first_runs(), ids=lambda r: f"{r['writer']}-{r['exercise']}-{r['answer']}"
)
def test_an_answer_written_from_the_starter_gets_its_verdict(
    run, verdict_on: Callable[..., Verdict]
) -> None:
    answer = first_run_as_mutant(run)
    verdict = verdict_on(run["exercise"], answer.module(solution_of(run["exercise"])))
    assert (verdict.message_id or verdict.status) == run["now"], verdict.message


def test_every_answer_of_a_first_run_is_in_the_record() -> None:
    assert {path_of(run) for run in first_runs()} == set(FIRST_RUNS.glob("*/*/*/*.py"))
