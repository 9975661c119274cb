"""Checks of ``collectives.broadcast``: every rank ends with what the source held."""

from dataclasses import replace

import pytest

from multigpu.checking import exercise

from .cases import odd, plain
from .explain_broadcast import examine
from .running import run


def check(learner, cases, world):
    for ranks in run(learner, cases, world):
        examine(ranks)


def from_each_source(cases, world):
    """The cases with another source each, so that every rank is one."""
    return [replace(case, src=index % world) for index, case in enumerate(cases)]


@exercise("collectives.broadcast")
def test_from_rank_0(learner):
    check(learner, plain(3), 3)


@exercise("collectives.broadcast")
def test_from_any_rank(learner):
    check(learner, from_each_source(plain(3)[:1] * 3, 3), 3)


@exercise("collectives.broadcast")
def test_any_shape_and_type(learner):
    check(learner, from_each_source(odd(3), 3), 3)


@exercise("collectives.broadcast")
@pytest.mark.parametrize("world", [2, 4, 1])
def test_other_numbers_of_ranks(learner, world):
    cases = from_each_source(plain(world) + odd(world), world)
    check(learner, cases[::-1] + cases, world)
