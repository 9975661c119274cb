"""Checks of ``distributed_data_parallel.weighted_average_gradients``: every row counts the same."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

from multigpu.checking import Wrong, exercise
from multigpu.checking.comparing import WIDTH, Specimen
from multigpu.checking.verdicts import Refused
from multigpu.ranks import rank_device

from .driving import gradients_of, weights_of
from .explain_weighted_average_gradients import STUCK, Report
from .models import fork
from .unequal_rows import LEARNING_RATE, MOMENTUM

ROWS = {  # of every rank, step by step; shares of 4 rows are exact, in float32 too
    3: [[3, 3, 3], [4, 0, 1], [0, 0, 2], [2, 6, 4]],
    4: [[1, 2, 3, 4], [0, 5, 0, 1], [2, 2, 2, 2]],
    2: [[3, 1], [5, 2], [0, 3], [4, 4]],
    1: [[3], [2]],
}


def drive(submission, cases):
    """Train a model on the rows of this rank, and tell its gradients of every step."""
    device, results = rank_device(), []
    for model, steps in cases:
        model = model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, momentum=MOMENTUM)
        notes = []
        for batches in steps:
            inputs, targets = (part.to(device) for part in batches[dist.get_rank()])
            optimizer.zero_grad()
            if len(inputs):
                mse_loss(model(inputs), targets).backward()
            submission.weighted_average_gradients(model, len(inputs))
            notes.append({"gradients": gradients_of(model), "weights": weights_of(model)})
            optimizer.step()
        results.append(notes)
    return results


def steps_of(rows, columns=WIDTH, outputs=WIDTH, dtype=torch.float64):
    """Inputs and targets for ``rows[step][rank]`` rows; ``columns`` may depend on step and rank."""
    generator = torch.Generator().manual_seed(sum(map(sum, rows)))
    of = columns if callable(columns) else lambda step, rank: columns
    return [
        [
            tuple(
                torch.randn(count, width, generator=generator, dtype=dtype)
                for width in (of(step, rank), outputs)
            )
            for rank, count in enumerate(counts)
        ]
        for step, counts in enumerate(rows)
    ]


def check(learner, world, cases):
    try:
        answer = learner.run_ranks(drive, cases, world=world)
    except Refused as refused:
        if refused.finding is None or refused.finding.kind not in ("deadlock", "mismatch"):
            raise
        raise Wrong(
            "weighted_average_gradients.calls_left_out",
            **STUCK,
            came=refused.finding.message,
            status=refused.status,
        ) from None
    for (model, steps), *results in zip(cases, *answer.results, strict=True):
        Report(model, steps, results, answer.wheres).examine()


@exercise("distributed_data_parallel.weighted_average_gradients")
def test_ranks_without_rows_take_part(learner):
    check(learner, 3, [(Specimen(seed=2), steps_of([[5, 1, 2], [4, 0, 1]]))])


@exercise("distributed_data_parallel.weighted_average_gradients")
@pytest.mark.parametrize("world", [3, 2, 4, 1])
def test_every_row_counts_the_same(learner, world):
    check(learner, world, [(Specimen(seed=3), steps_of(ROWS[world]))])


@exercise("distributed_data_parallel.weighted_average_gradients")
def test_parameters_that_some_ranks_do_not_use(learner):
    rows = [[2, 3, 1], [1, 4, 2], [3, 0, 2]]
    columns = lambda step, rank: 3 if (step + rank) % 2 else 6  # noqa: E731
    single = steps_of([[4, 1, 2], [0, 3, 1]], dtype=torch.float32)
    cases = [(fork(0), steps_of(rows, columns, 2)), (Specimen(seed=4).float(), single)]
    check(learner, 3, cases)
