"""Checks of ``distributed_data_parallel.BucketedDDP``: as OverlappedDDP, but in buckets."""

import pytest

from multigpu.checking import exercise

from .explain_bucketed import Bucketed
from .models import accumulated, chain, fork, forked, same_columns, specimen
from .training import Case, check, check_unused


def buckets(limit):
    return {"bucket_bytes": limit}


@exercise("distributed_data_parallel.BucketedDDP")
@pytest.mark.parametrize("world", [3, 4, 2, 1])
def test_training(learner, world):
    """Tied, frozen and zero-dimensional parameters, in buckets of several sizes."""
    steps = same_columns(world, 3, 3, 3)
    cases = [
        Case(specimen, steps, buckets(40)),
        Case(specimen, steps),
        Case(specimen, steps, buckets(40), how=("keep",)),
    ]
    check(learner, Bucketed, world, cases)


@exercise("distributed_data_parallel.BucketedDDP")
@pytest.mark.parametrize("world", [2, 3])
def test_buckets_travel_during_backward(learner, world):
    """The default and three sizes of buckets, with layers whose gradients are ready one by one."""
    steps = same_columns(world, 2, 3, 2)
    sizes = [{}, buckets(610), buckets(250), buckets(1)]
    cases = [Case(chain, steps, options, how=("one_by_one",)) for options in sizes]
    check(learner, Bucketed, world, cases)


@exercise("distributed_data_parallel.BucketedDDP")
@pytest.mark.parametrize("world", [3, 2])
def test_parameters_that_some_ranks_do_not_use(learner, world):
    steps = forked(world, 3)
    cases = [Case(fork, steps, options) for options in ({}, buckets(100), buckets(1))]
    check_unused(learner, Bucketed, world, cases)


@exercise("distributed_data_parallel.BucketedDDP")
def test_no_sync(learner):
    """Four backward passes, three of them inside no_sync; then a step without it; then again."""
    steps = same_columns(3, 1, 3, 3, passes=4)
    steps += same_columns(3, 1, 3, 3) + same_columns(3, 1, 3, 3, passes=2)
    cases = [Case(specimen, steps, options) for options in ({}, buckets(40))]
    check(learner, Bucketed, 3, cases)


@exercise("distributed_data_parallel.BucketedDDP")
def test_no_sync_and_parameters_that_the_last_pass_does_not_use(learner):
    cases = [Case(fork, accumulated(3), options) for options in ({}, buckets(1))]
    check_unused(learner, Bucketed, 3, cases)
