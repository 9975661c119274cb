"""Checks of ``data_parallel.train_step``: the same training as on one GPU, step after step."""

import pytest
import torch
from torch import nn

from multigpu.checking import exercise
from multigpu.checking.specimens import WIDTH, Specimen, snapshot
from multigpu.training.models import SmallCNN

from .explain_train_step import Report
from .one_gpu import LEARNING_RATE, MOMENTUM


def drive(submission, devices, model_of, batches, loss_fn):
    """Train, and tell after each step what every replica holds."""
    replicas = [model_of().to(device) for device in devices]
    optimizer = torch.optim.SGD(replicas[0].parameters(), LEARNING_RATE, momentum=MOMENTUM)
    steps = []
    for inputs, targets in batches:
        loss = submission.train_step(replicas, inputs, targets, loss_fn, optimizer)
        steps.append(
            {
                "loss": float(loss) if isinstance(loss, float) else loss,
                "replicas": [copy_of(snapshot(replica)) for replica in replicas],
            }
        )
    return steps


def copy_of(snap):
    return {
        kind: {name: tensor.detach().clone() for name, tensor in snap[kind].items()}
        for kind in ("parameters", "buffers")
    }


def model():
    """A new model that is the same each time."""
    return Specimen(seed=7)


def small_cnn():
    """The course's model for digits, in float64 so that it can be compared exactly."""
    torch.manual_seed(7)
    return SmallCNN().double()


class Fork(nn.Module):
    """Two layers, of which a step uses one: that for the width of its rows."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, 2, dtype=torch.float64) for width in (3, 4))

    def forward(self, rows):
        return self.layers[rows.shape[1] - 3](rows)


def fork():
    torch.manual_seed(7)
    return Fork()


def batches_of(*rows):
    generator = torch.Generator().manual_seed(sum(rows))
    return [
        tuple(torch.randn(n, WIDTH, generator=generator, dtype=torch.float64) for _ in "xy")
        for n in rows
    ]


def squares(outputs, targets):
    """A loss of your own: a mean over rows."""
    return (outputs - targets).square().sum(dim=1).mean()


def check(learner, n, batches, loss_fn=nn.functional.mse_loss, model_of=model):
    """Train on all batches in one worker with n GPUs, and look at every step."""
    answer = learner.run(drive, model_of, batches, loss_fn, gpus=n)
    report = Report(n, model_of(), batches, loss_fn, answer)
    for step in range(len(batches)):
        report.examine(step)


@exercise("data_parallel.train_step")
@pytest.mark.parametrize("n", [2, 3, 4, 1])
def test_one_step(learner, n):
    check(learner, n, batches_of(2 * n))


@exercise("data_parallel.train_step")
@pytest.mark.parametrize("n", [2, 3, 4])
def test_steps_with_momentum(learner, n):
    check(learner, n, batches_of(2 * n, 2 * n + 1, 3 * n - 1, 2 * n))


@exercise("data_parallel.train_step")
@pytest.mark.parametrize("n", [2, 3, 4])
def test_fewer_rows_than_gpus(learner, n):
    check(learner, n, batches_of(2 * n + 1, 1, n - 1, 2 * n))


@exercise("data_parallel.train_step")
def test_any_loss_that_is_a_mean_over_rows(learner):
    check(learner, 2, batches_of(5, 3), squares)


@exercise("data_parallel.train_step")
def test_images_and_labels(learner):
    generator = torch.Generator().manual_seed(1)
    batches = [
        (
            torch.rand(rows, 1, 8, 8, generator=generator, dtype=torch.float64),
            torch.randint(10, (rows,), generator=generator),
        )
        for rows in (7, 4)
    ]
    check(learner, 3, batches, nn.CrossEntropyLoss(), small_cnn)


@exercise("data_parallel.train_step")
def test_a_layer_that_a_step_does_not_use(learner):
    generator = torch.Generator().manual_seed(2)
    batches = [
        tuple(
            torch.randn(rows, columns, generator=generator, dtype=torch.float64)
            for columns in (width, 2)
        )
        for rows, width in ((6, 3), (5, 4), (4, 3))
    ]
    check(learner, 3, batches, nn.functional.mse_loss, fork)
