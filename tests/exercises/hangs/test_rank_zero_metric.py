"""Checks of ``hangs.rank_zero_metric``: all ranks call the same, and all know the mean."""

import pytest
import torch
import torch.distributed as dist

from multigpu.checking import exercise
from multigpu.checking.verdicts import Refused
from multigpu.ranks import rank_device

from .explain_rank_zero_metric import STUCK, examine
from .stuck import in_own_words


def drive(submission, cases):
    """Take the mean of each case, and tell what this rank got."""
    results = []
    for values in cases:
        own = values[dist.get_rank()].to(rank_device())
        before = own.clone()
        returned = submission.rank_zero_metric(own)
        results.append(
            {
                "returned": float(returned) if isinstance(returned, float) else returned,
                "changed": own.shape != before.shape or not torch.equal(own, before),
            }
        )
    return results


def values_of(counts, dtype=torch.float64):
    """So many values for each rank."""
    generator = torch.Generator().manual_seed(sum(counts))
    return [
        torch.randn(count, generator=generator, dtype=dtype) + rank
        for rank, count in enumerate(counts)
    ]


def check(learner, world, cases):
    try:
        answer = learner.run_ranks(drive, cases, world=world)
    except Refused as refused:
        message_id = "rank_zero_metric.only_some_ranks_call"
        raise in_own_words(refused, message_id, kind="deadlock", **STUCK) from None
    for values, *results in zip(cases, *answer.results, strict=True):
        examine(values, results, answer.wheres)


@exercise("hangs.rank_zero_metric")
def test_all_ranks_make_the_same_calls(learner):
    check(learner, 3, [values_of([2, 5, 1])])  # alone: who gets stuck, gets stuck here


@exercise("hangs.rank_zero_metric")
@pytest.mark.parametrize("world", [3, 2, 4, 1])
def test_every_rank_knows_the_mean(learner, world):
    cases = [
        values_of([3, 1, 2, 6][:world]),
        values_of([3] * world),
        values_of([1, 4, 2, 6][:world], torch.float32),
    ]
    check(learner, world, cases)
