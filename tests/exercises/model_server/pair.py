"""The checks of a server with its workers: the same for both exercises."""

import torch

from multigpu.checking import Wrong

from .explain_earlier import examine_earlier
from .explain_server_step import examine_alone, examine_sending, examine_server
from .explain_worker_step import examine_worker, examine_worker_handles
from .models import (
    branches,
    heavy,
    other_specimen,
    rows_for,
    rows_of_two_widths,
    small,
    specimen,
    specimen_with_gradients,
)
from .running import run
from .training import adam, decay, momentum, sgd
from .travel import examine_bytes, examine_road


def examine(training):
    """Raise Wrong at the first step in which a rank is not as it should be."""
    try:
        examine_steps(training)
    except Wrong:
        examine_earlier(training)
        raise


def examine_steps(training):
    for server, *workers in training.sides:
        for worker in workers:
            examine_worker_handles(training, worker)
        examine_server(training, server)
        for worker in workers:
            examine_worker(training, worker, examine_sending)
        for worker in workers:
            examine_road(training, worker)


def check_training(learner, world):
    """Tied, frozen and scalar parameters, and buffers.  Then the same with another model."""
    optimizer = decay if world > 2 else adam
    models = [(specimen, optimizer, rows_for(world)), (other_specimen, sgd, rows_for(world)[1:])]
    for training in run(learner, models, world):
        examine(training)


def check_missing_gradients(learner, world):
    """With one worker, momentum would go on moving what a step does not use, zeros or not."""
    optimizer = momentum if world > 2 else sgd
    (training,) = run(learner, [(branches, optimizer, rows_of_two_widths(world))], world)
    examine(training)


def check_bytes(learner, world):
    """Each parameter travels once up and once down, after a model of another size."""
    rows = rows_for(world, steps=2, widths=(10, 100), dtype=torch.float32)
    models = [(small, sgd, rows[:1]), (heavy, momentum, rows)]
    for training in run(learner, models, world):
        examine(training)
    for _, *workers in training.sides:
        for worker in workers:
            examine_bytes(training, worker)


def check_alone(learner):
    """A server without workers, whose model still has gradients from before."""
    (training,) = run(learner, [(specimen_with_gradients, momentum, [[], []])], 1)
    for (server,) in training.sides:
        examine_alone(training, server)
