"""Checks of ``distributed_data_parallel.NaiveDDP``: training as in one process, step by step."""

import pytest

from multigpu.checking import exercise

from .explain_training import Report
from .models import chain, fork, forked, same_columns, specimen
from .training import Case, check, check_unused


class Naive(Report):
    function = "NaiveDDP"


@exercise("distributed_data_parallel.NaiveDDP")
@pytest.mark.parametrize("world", [3, 4, 2, 1])
def test_training(learner, world):
    """Tied, frozen and zero-dimensional parameters, and three kinds of buffers."""
    cases = [
        Case(specimen, same_columns(world, 3, 3, 3)),
        Case(chain, same_columns(world, 2, 3, 2), how=("keep",)),
    ]
    check(learner, Naive, world, cases)


@exercise("distributed_data_parallel.NaiveDDP")
def test_parameters_that_some_ranks_do_not_use(learner):
    check_unused(learner, Naive, 3, [Case(fork, forked(3, 3))])
