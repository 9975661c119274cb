"""Checks of ``collectives.shift``: every rank gets what the rank before it sent."""

import pytest

from multigpu.checking import exercise

from .cases import odd, plain
from .explain_shift import examine
from .running import run


def check(learner, cases, world):
    for ranks in run(learner, cases, world):
        examine(ranks)


@exercise("collectives.shift")
def test_three_ranks_in_a_ring(learner):
    check(learner, plain(3), 3)


@exercise("collectives.shift")
def test_any_shape_and_type(learner):
    check(learner, odd(3), 3)


@exercise("collectives.shift")
@pytest.mark.parametrize("world", [2, 4, 1])
def test_other_numbers_of_ranks(learner, world):
    check(learner, plain(world) + odd(world), world)
