"""Checks of ``data_parallel.train_step``: the same training as on one GPU, step after step."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn

from multigpu.checking import exercise
from multigpu.checking.comparing import WIDTH, Specimen, seeded, snapshot
from multigpu.training.models import SmallCNN

from .arguments import Kept
from .explain_train_step import Report
from .one_gpu import LEARNING_RATE, MOMENTUM


def drive(submission, devices, model_of, batches, loss_fn, order, source):
    """Train on the GPUs in ``order``, and tell after each step what every replica holds.

    The rows come from GPU ``source``, or from the CPU if it is None.
    """
    replicas = [model_of().to(devices[i]) for i in order]
    optimizer = torch.optim.SGD(replicas[0].parameters(), LEARNING_RATE, momentum=MOMENTUM)
    steps = []
    for inputs, targets in batches:
        if source is not None:
            inputs, targets = inputs.to(devices[source]), targets.to(devices[source])
        kept = Kept(inputs=inputs, targets=targets)
        with busy_gpus() as busy:
            loss = submission.train_step(replicas, inputs, targets, loss_fn, optimizer)
        steps.append(
            {
                "loss": float(loss) if isinstance(loss, float) else loss,
                "busy": sorted(busy),
                "changed": kept.changed(),
                "replicas": [copy_of(snapshot(replica)) for replica in replicas],
            }
        )
    return steps


@contextmanager
def busy_gpus():
    """The names of the GPUs on which layers with weights run inside the block.

    A hook on all modules sees copies of the replicas, too, and a layer whose model was not called
    but its ``forward``.
    """
    busy = set()

    def note(module, inputs, output):
        if next(module.parameters(), None) is not None:
            busy.add(str(output.device))

    hook = nn.modules.module.register_module_forward_hook(note)
    try:
        yield busy
    finally:
        hook.remove()


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
    return seeded(SmallCNN, 7).double()


class Fork(nn.Module):
    """Two layers, of which a step uses one: that for the width of its rows."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, 2, dtype=torch.float64) for width in (3, 4))

    def forward(self, rows):
        return self.layers[rows.shape[1] - 3](rows)


def fork():
    return seeded(Fork, 7)


def batches_of(*rows):
    generator = torch.Generator().manual_seed(sum(rows))
    return [
        tuple(torch.randn(n, WIDTH, generator=generator, dtype=torch.float64) for _ in "xy")
        for n in rows
    ]


def squares(outputs, targets):
    """A loss of your own: a mean over rows."""
    return (outputs - targets).square().sum(dim=1).mean()


def check(
    learner, n, batches, loss_fn=nn.functional.mse_loss, model_of=model, order=None, source=None
):
    """Train on all batches in one worker with n GPUs, and look at every step.

    ``order`` has the GPUs of the replicas, all of them if it is None.
    """
    order = list(range(n)) if order is None else order
    answer = learner.run(drive, model_of, batches, loss_fn, order, source, gpus=n)
    report = Report(order, model_of(), batches, loss_fn, answer)
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


@exercise("data_parallel.train_step")
@pytest.mark.parametrize("order", [[2, 0, 1], [1]], ids=str)
def test_gpus_in_any_order(learner, order):
    check(learner, 3, batches_of(6, 4), order=order)


@exercise("data_parallel.train_step")
@pytest.mark.parametrize("source", [0, 1])
def test_rows_that_are_on_a_gpu_already(learner, source):
    check(learner, 2, batches_of(5, 4), source=source)
