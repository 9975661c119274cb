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
    """Tied, frozen and zero-dimensional parameters; then layers that are ready one by one."""
    cases = [
        Case(specimen, same_columns(world, 3, 3, 3), buckets(40)),
        Case(specimen, same_columns(world, 3, 3, 3), how=("keep",)),
        Case(chain, same_columns(world, 1, 3, 2), buckets(610), how=("one_by_one",)),
    ]
    check(learner, Bucketed, world, cases)


@exercise("distributed_data_parallel.BucketedDDP")
def test_sizes_of_buckets(learner):
    steps = same_columns(3, 1, 3, 2)
    sizes = [buckets(250), buckets(1), {}]
    check(learner, Bucketed, 3, [Case(chain, steps, size, how=("one_by_one",)) for size in sizes])


@exercise("distributed_data_parallel.BucketedDDP")
def test_parameters_that_some_ranks_do_not_use(learner):
    cases = [Case(fork, forked(3, 3), size) for size in ({}, buckets(100), buckets(1))]
    check_unused(learner, Bucketed, 3, cases)


@exercise("distributed_data_parallel.BucketedDDP")
def test_no_sync(learner):
    """Four backward passes, three of them inside no_sync; then a step without it; then again.

    The second last case is there to see that buckets start during the backward after no_sync; the
    last one leaves no_sync by an exception.
    """
    steps = same_columns(3, 1, 3, 3, passes=4)
    steps += same_columns(3, 1, 3, 3) + same_columns(3, 1, 3, 3, passes=2)
    cases = [Case(specimen, steps, size) for size in ({}, buckets(40))]
    slow = same_columns(3, 1, 3, 2, passes=2)
    cases.append(Case(chain, slow, buckets(610), how=("one_by_one",)))
    cases.append(Case(specimen, same_columns(3, 1, 3, 3), how=("interrupted",)))
    check(learner, Bucketed, 3, cases)
    check(learner, Bucketed, 2, [Case(specimen, same_columns(2, 3, 3, 3, passes=2))])


@exercise("distributed_data_parallel.BucketedDDP")
def test_no_sync_and_parameters_that_the_last_pass_does_not_use(learner):
    cases = [Case(fork, accumulated(3), size) for size in ({}, buckets(1))]
    check_unused(learner, Bucketed, 3, cases)
