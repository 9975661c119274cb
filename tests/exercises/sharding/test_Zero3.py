"""Checks of ``sharding.Zero3``: training as in one process, and what each rank holds meanwhile."""

from dataclasses import dataclass
from functools import cached_property

import pytest

from multigpu.checking import exercise
from multigpu.checking.verdicts import Refused

from .explain_zero3 import Report
from .explain_zero3_crash import explained
from .zero3_driving import drive
from .zero3_models import deep, rows_for, steps_for, words
from .zero3_one_process import sizes_of


@dataclass(frozen=True)
class Case:
    """One training: ``model_of(rank)``, ``steps[s][rank]``, ``evaluation[rank]``."""

    model_of: object
    world: int
    number: int = 3

    @cached_property
    def steps(self):
        return steps_for(self.model_of, self.world, self.number)

    @cached_property
    def evaluation(self):
        return [rows_for(self.model_of, 900 + rank) for rank in range(self.world)]

    def sent(self):
        sizes = sizes_of(self.model_of, self.world, self.steps[0][0])
        allowed = sizes.weights, sizes.weights + sizes.activations
        return self.model_of, self.steps, self.evaluation, allowed


def check(learner, world, *models):
    cases = [Case(model_of, world) for model_of in models]
    try:
        answer = learner.run_ranks(drive, [case.sent() for case in cases], world=world)
    except Refused as refused:
        raise explained(refused) from None
    for i, case in enumerate(cases):
        Report(world, case, [own[i] for own in answer.results], answer).examine()


@exercise("sharding.Zero3")
@pytest.mark.parametrize("world", [3, 2])
def test_training(learner, world):
    """Eight layers of nearly one size."""
    check(learner, world, deep)


@exercise("sharding.Zero3")
@pytest.mark.parametrize("world", [4, 3, 1])
def test_small_and_nested_layers(learner, world):
    """Words, parameters of the outermost module, layers inside layers, one element on 4 ranks."""
    check(learner, world, words)
