"""Checks of ``data_parallel.broadcast``: all replicas as the first one, written in place."""

import pytest
import torch

from multigpu.checking import exercise
from multigpu.checking.comparing import Specimen, snapshot

from .explain_broadcast import Report
from .grad_mode import switches_gradients_off


def drive(submission, devices, cases, newer=None):
    """Broadcast, and tell what every replica holds then, seen also through older references.

    With a model ``newer``, broadcast once before, then write its numbers into the first replica.
    """
    results = []
    for models, order in cases:
        replicas = [model.to(devices[i]) for model, i in zip(models, order, strict=True)]
        if newer is not None:
            submission.broadcast(replicas)
            overwrite(replicas[0], newer)
        before = [snapshot(replica) for replica in replicas]
        views = [views_of(old["parameters"] | old["buffers"]) for old in before]
        gradients_off = switches_gradients_off(submission.broadcast, replicas)
        held = [
            {**snapshot(replica), "objects_before": old["objects"], "views": seen}
            for replica, old, seen in zip(replicas, before, views, strict=True)
        ]
        results.append({"replicas": held, "gradients_off": gradients_off})
    return results


@torch.no_grad()
def overwrite(replica, newer):
    tensors = [*replica.parameters(), *replica.buffers()]
    for tensor, new in zip(tensors, [*newer.parameters(), *newer.buffers()], strict=True):
        tensor.copy_(new)


def views_of(tensors):
    """Tensors that share the memory of others."""
    return {name: tensor.detach() for name, tensor in tensors.items()}


def check(learner, cases, n, newer=None):
    """Run all cases (models, order of GPUs) in one worker with n GPUs."""
    answer = learner.run(drive, cases, newer, gpus=n)
    for (models, order), result in zip(cases, answer.result, strict=True):
        if newer is not None:  # all others hold what the first broadcast brought
            models = [newer] + [models[0]] * (len(models) - 1)
        report = Report(models, order, result["replicas"], answer.where)
        report.examine()
        report.examine_grad_mode(result["gradients_off"])


def different_models(n):
    return [Specimen(seed=1 + i) for i in range(n)]


@exercise("data_parallel.broadcast")
@pytest.mark.parametrize("n", [3, 2, 4])
def test_all_replicas_as_the_first(learner, n):
    check(learner, [(different_models(n), range(n))], n)


@exercise("data_parallel.broadcast")
def test_gpus_in_any_order(learner):
    orders = [[2, 0, 1], [1, 0], [1]]
    check(learner, [(different_models(len(order)), order) for order in orders], 3)


@exercise("data_parallel.broadcast")
def test_only_the_first_was_trained(learner):
    models = [Specimen(seed=5) for _ in range(3)]
    with torch.no_grad():
        for parameter in models[0].parameters():
            parameter.add_(1)
    check(learner, [(models, range(3))], 3)


@exercise("data_parallel.broadcast")
def test_float32(learner):
    check(learner, [([model.float() for model in different_models(3)], range(3))], 3)


@exercise("data_parallel.broadcast")
def test_a_second_time_with_newer_weights(learner):
    check(learner, [(different_models(3), range(3))], 3, newer=Specimen(seed=9))
