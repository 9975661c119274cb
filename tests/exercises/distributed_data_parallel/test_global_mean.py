"""Checks of ``distributed_data_parallel.global_mean``: every value counts once, on every rank."""

import pytest
import torch
import torch.distributed as dist

from multigpu.checking import Wrong, exercise
from multigpu.checking.verdicts import Refused
from multigpu.ranks import rank_device

from .explain_global_mean import STUCK, Report

COUNTS = {
    3: [[5, 1, 2], [2, 2, 2], [0, 0, 5], [0, 0, 0]],
    2: [[1, 4], [0, 3], [0, 0]],
    4: [[1, 5, 0, 2], [0, 0, 0, 0]],
    1: [[4], [0]],
}


def drive(submission, cases):
    """Take the mean of each case, and tell what this rank got."""
    results = []
    for values in cases:
        own = values[dist.get_rank()].to(rank_device())
        before = own.clone()
        returned = submission.global_mean(own)
        results.append(
            {
                "returned": float(returned) if isinstance(returned, float) else returned,
                "changed": own.shape != before.shape or not torch.equal(own, before),
            }
        )
    return results


def values_of(shapes, dtype=torch.float64):
    """Values for each rank; their means differ from rank to rank."""
    generator = torch.Generator().manual_seed(len(str(shapes)))
    return [
        (torch.randn(shape, generator=generator, dtype=torch.float64) * 9 + 20 * rank + 1).to(dtype)
        for rank, shape in enumerate(shapes)
    ]


def spread(*groups, dtype):
    """``count`` values of this mean for each rank, all close to it; sums are exact in ``dtype``."""
    return [
        torch.cat([mean + step, mean - step, torch.full((count % 2,), mean)]).to(dtype)
        for count, mean in groups
        for step in [torch.arange(count // 2) % 4 / 4]
    ]


def check(learner, world, cases):
    try:
        answer = learner.run_ranks(drive, cases, world=world)
    except Refused as refused:
        if refused.finding is None or refused.finding.kind not in ("deadlock", "mismatch"):
            raise
        raise Wrong(
            "global_mean.calls_left_out",
            **STUCK,
            came=refused.finding.message,
            status=refused.status,
        ) from None
    for values, *results in zip(cases, *answer.results, strict=True):
        Report(values, results, answer.wheres).examine()


@exercise("distributed_data_parallel.global_mean")
def test_ranks_without_values_take_part(learner):
    check(learner, 3, [values_of([(4,), (1,), (3,)]), values_of([(3,), (0,), (1,)])])


@exercise("distributed_data_parallel.global_mean")
@pytest.mark.parametrize("world", [3, 2, 4, 1])
def test_every_value_counts_once(learner, world):
    check(learner, world, [values_of([(n,) for n in counts]) for counts in COUNTS[world]])


@exercise("distributed_data_parallel.global_mean")
def test_any_shape_and_type(learner):
    cases = [
        values_of([(4,), (1,), (3,)], torch.int64),
        values_of([(2, 3), (), (1, 2, 2)]),
        values_of([(3,), (0,), (2, 2)], torch.float32),
        values_of([(0,), (2,), (3, 2)], torch.int32),
        [values.abs().to(torch.uint8) for values in values_of([(20,), (3,), (30,)])],
        # All sums together are too large for float16, and bfloat16 has no number 301.
        spread((200, 200.0), (3, 100.0), (200, 150.0), dtype=torch.float16),
        spread((150, 2.0), (1, 5.0), (150, 4.0), dtype=torch.bfloat16),
    ]
    check(learner, 3, cases)
