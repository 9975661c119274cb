"""Checks of ``sharding.Zero2Optimizer``: as Zero1Optimizer, and gradients are freed."""

import pytest

from multigpu.checking import exercise

from .cases import every_optimizer, few_elements, some_unused, training
from .explain_gradients import Gradients
from .training import check, check_unused


class Zero2(Gradients):
    function = "Zero2Optimizer"
    most_traffic = 2


@exercise("sharding.Zero2Optimizer")
@pytest.mark.parametrize("world", [3, 4, 1])
def test_training(learner, world):
    """Tied, frozen and zero-dimensional parameters; then five steps, what is held and sent."""
    check(learner, Zero2, world, training(world))


@exercise("sharding.Zero2Optimizer")
def test_every_optimizer(learner):
    """Each of the five on two ranks; large and small parameters in turn, then small ones."""
    check(learner, Zero2, 2, every_optimizer(2))


@exercise("sharding.Zero2Optimizer")
def test_parameters_that_some_ranks_do_not_use(learner):
    check_unused(learner, Zero2, 3, some_unused(3))


@exercise("sharding.Zero2Optimizer")
def test_fewer_elements_than_ranks(learner):
    check(learner, Zero2, 4, few_elements(4))
