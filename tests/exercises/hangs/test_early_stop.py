"""Checks of ``hangs.early_stop``: when one rank wants to stop, all stop after the same step."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector

from multigpu.checking import exercise
from multigpu.checking.verdicts import Refused
from multigpu.ranks import rank_device

from .explain_early_stop import Report, explain_stuck
from .team import LEARNING_RATE, MOMENTUM, batches_of, model

LIMIT = 0.1  # a rank wants to stop when its loss is below


def drive(submission, cases):
    """Train a new model on each case, and tell how many steps that took, and all about them."""
    device, results = rank_device(), []
    for batches in cases:
        own = [(x.to(device), y.to(device)) for x, y in batches[dist.get_rank()]]
        net, asked = model().to(device), []

        def should_stop(loss, asked=asked):
            asked.append((isinstance(loss, float), float(loss)))
            return float(loss) < LIMIT

        optimizer = torch.optim.SGD(net.parameters(), LEARNING_RATE, momentum=MOMENTUM)
        results.append(
            {
                "returned": submission.early_stop(net, own, optimizer, should_stop),
                "asked": asked,
                "weights": parameters_to_vector(net.parameters()).detach().clone(),
            }
        )
    return results


def batches_with(world, steps, low):
    """Batches with losses of about 1, but nearly 0 where (step, rank) is ``low``."""
    batches = batches_of([steps] * world, seed=world)
    for step, rank in low:
        inputs, targets = batches[rank][step - 1]
        batches[rank][step - 1] = (inputs * 0.01, targets * 0.01)
    return batches


def cases_for(world):
    """Stop in the middle, never, at once, at the end, and when several or all ranks want to."""
    last = world - 1
    everyone = [(7, rank) for rank in range(world)]
    return [
        batches_with(world, 8, [(3, 1 % world), (5, 0), (6, last), *everyone]),
        batches_with(world, 3, []),
        batches_with(world, 3, [(1, last)]),
        batches_with(world, 3, [(3, last)]),
        *(batches_with(world, 4, [(2, r) for r in range(n)]) for n in range(2, world)),
        batches_with(world, 4, [(2, rank) for rank in range(world)]),
    ]


def check(learner, world, cases):
    try:
        answer = learner.run_ranks(drive, cases, world=world)
    except Refused as refused:
        when = "rank 1 wants to stop in step 3" if len(cases) == 1 else ""
        raise explain_stuck(refused, when) from None
    for batches, *results in zip(cases, *answer.results, strict=True):
        Report(batches, LIMIT, results, answer.wheres).examine()


@exercise("hangs.early_stop")
def test_no_rank_goes_on_alone(learner):
    check(learner, 3, cases_for(3)[:1])  # alone: who gets stuck, gets stuck here


@exercise("hangs.early_stop")
@pytest.mark.parametrize("world", [3, 2, 4, 1])
def test_all_stop_after_the_same_step(learner, world):
    check(learner, world, cases_for(world))
