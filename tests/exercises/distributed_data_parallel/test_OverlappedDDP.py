"""Checks of ``distributed_data_parallel.OverlappedDDP``: as NaiveDDP, but during backward."""

import pytest

from multigpu.checking import exercise

from .explain_overlapped import Overlapped
from .models import chain, same_columns, specimen
from .training import Case, check


@exercise("distributed_data_parallel.OverlappedDDP")
@pytest.mark.parametrize("world", [3, 4, 2, 1])
def test_training(learner, world):
    """Tied, frozen and zero-dimensional parameters; then layers that are ready one by one."""
    cases = [
        Case(specimen, same_columns(world, 3, 3, 3), how=("handles",)),
        Case(chain, same_columns(world, 2, 3, 2), how=("one_by_one",)),
    ]
    check(learner, Overlapped, world, cases)


@exercise("distributed_data_parallel.OverlappedDDP")
def test_gradients_that_are_zeroed(learner):
    """``zero_grad(set_to_none=False)`` leaves tensors, in which backward adds up."""
    check(learner, Overlapped, 2, [Case(specimen, same_columns(2, 3, 3, 3), how=("keep",))])
