"""Checks of ``data_parallel.replicate``: a complete, independent copy of the model on every GPU."""

import pytest
import torch
from torch import nn

from multigpu.checking import exercise
from multigpu.checking.comparing import WIDTH, Specimen, snapshot
from multigpu.training.models import SmallCNN

from .explain_replica import examine_training
from .explain_replicate import Report


def drive(submission, devices, cases):
    """Replicate each module, which lies on GPU ``source`` or the CPU, and look at what came."""
    results = []
    for module, order, source in cases:
        if source is not None:
            module.to(devices[source])
        replicas = submission.replicate(module, tuple(devices[i] for i in order))
        results.append(look_at(replicas, module))
    return results


def look_at(replicas, module):
    if not isinstance(replicas, list | tuple):
        return replicas
    return [
        {"is_module": replica is module, **snapshot(replica)}
        if isinstance(replica, nn.Module)
        else replica
        for replica in replicas
    ]


def drive_training(submission, devices, module, inputs):
    """Let each replica compute outputs and gradients by itself."""
    results = []
    for replica, device in zip(submission.replicate(module, devices), devices, strict=True):
        output = replica(inputs.to(device))
        output.sum().backward()
        gradients = {name: p.grad for name, p in replica.named_parameters()}
        results.append({"output": output, "gradients": gradients})
    return results


def check(learner, cases, n):
    """Run all cases (module, order of GPUs, where it lies) in one worker with n GPUs."""
    answer = learner.run(drive, cases, gpus=n)
    for (module, order, _), replicas in zip(cases, answer.result, strict=True):
        Report(module, order, replicas, answer.where).examine()


@exercise("data_parallel.replicate")
@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_small_cnn(learner, n):
    torch.manual_seed(1)
    check(learner, [(SmallCNN(), range(n), None)], n)


@exercise("data_parallel.replicate")
@pytest.mark.parametrize("n", [2, 3, 4])
def test_everything_that_belongs_to_a_model(learner, n):
    check(learner, [(Specimen(seed=1), range(n), None)], n)


@exercise("data_parallel.replicate")
def test_modes_of_the_layers(learner):
    training, evaluating = Specimen(seed=2), Specimen(seed=3).eval()
    evaluating.encode.train()
    check(learner, [(model, range(2), None) for model in (training, evaluating)], 2)


@exercise("data_parallel.replicate")
def test_gpus_in_any_order(learner):
    places = [([1, 0], None), ([2, 0, 1], 1), ([1, 2], 0), ([3, 1, 2, 0], None), ([1], None)]
    check(learner, [(Specimen(seed=4), order, source) for order, source in places], 4)


@exercise("data_parallel.replicate")
def test_each_replica_can_be_trained(learner):
    inputs = torch.linspace(-1, 1, 2 * WIDTH, dtype=torch.float64).reshape(2, WIDTH)
    module = Specimen(seed=5)
    answer = learner.run(drive_training, module, inputs, gpus=3)
    for i, came in enumerate(answer.result):
        examine_training(module, inputs, i, came, answer.where)
