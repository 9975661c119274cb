"""Checks of ``collectives.all_reduce``: the sum on every rank, by any plan."""

import pytest

from multigpu.checking import exercise

from .cases import odd, plain
from .explain_all_reduce import examine
from .running import run


def check(learner, cases, world):
    for ranks in run(learner, cases, world):
        examine(ranks)


@exercise("collectives.all_reduce")
def test_three_ranks(learner):
    check(learner, plain(3), 3)


@exercise("collectives.all_reduce")
def test_any_shape_and_type(learner):
    check(learner, odd(3), 3)


@exercise("collectives.all_reduce")
@pytest.mark.parametrize("world", [2, 4, 1])
def test_other_numbers_of_ranks(learner, world):
    check(learner, plain(world) + odd(world), world)
