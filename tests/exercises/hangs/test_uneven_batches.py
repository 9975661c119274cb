"""Checks of ``hangs.uneven_batches``: no rank waits for ever, and every batch counts."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector

from multigpu.checking import exercise
from multigpu.checking.verdicts import Refused, listed
from multigpu.ranks import rank_device

from .explain_uneven_batches import examine, explain_stuck
from .team import LEARNING_RATE, MOMENTUM, batches_of, model

COUNTS = {
    3: [[2, 3, 1], [2, 2, 2], [0, 2, 4], [1, 0, 0], [1, 6, 3]],
    2: [[1, 3], [2, 0], [2, 2]],
    4: [[2, 3, 0, 1], [0, 0, 2, 0]],
    1: [[3]],
}


def drive(submission, cases):
    """Train a new model on each case; tell this rank's weights at the end, and its steps."""
    device, results = rank_device(), []
    for batches in cases:
        own = [(x.to(device), y.to(device)) for x, y in batches[dist.get_rank()]]
        net = model().to(device)
        optimizer = torch.optim.SGD(net.parameters(), LEARNING_RATE, momentum=MOMENTUM)
        steps = []
        optimizer.register_step_post_hook(lambda *_, steps=steps: steps.append(1))
        submission.uneven_batches(net, own, optimizer)
        weights = parameters_to_vector(net.parameters()).detach().clone()
        results.append({"weights": weights, "steps": len(steps)})
    return results


def check(learner, world, all_counts):
    cases = [batches_of(counts) for counts in all_counts]
    try:
        answer = learner.run_ranks(drive, cases, world=world)
    except Refused as refused:
        held = f"the ranks hold {listed(all_counts[0])} batches" if len(all_counts) == 1 else ""
        raise explain_stuck(refused, held) from None
    for batches, *results in zip(cases, *answer.results, strict=True):
        examine(batches, results, answer.wheres)


@exercise("hangs.uneven_batches")
def test_no_rank_waits_for_one_without_batches(learner):
    check(learner, 3, [[3, 1, 2]])  # alone: who gets stuck, gets stuck here


@exercise("hangs.uneven_batches")
@pytest.mark.parametrize("world", [3, 2, 4, 1])
def test_every_batch_counts_on_every_rank(learner, world):
    check(learner, world, COUNTS[world])
