"""Checks of ``data_parallel.sum_gradients``: the first replica gets the sum, and only the sum."""

import pytest
import torch

from multigpu.checking import exercise
from multigpu.checking.comparing import Specimen

from .explain_sum_gradients import Report
from .grad_mode import switches_gradients_off


def drive(submission, devices, cases):
    """Give every replica its gradients, sum them, and tell what every replica holds then."""
    results = []
    for models, gradients, order in cases:
        replicas = [model.to(devices[i]) for model, i in zip(models, order, strict=True)]
        for replica, own, i in zip(replicas, gradients, order, strict=True):
            for name, parameter in replica.named_parameters():
                if own[name] is not None:
                    parameter.grad = own[name].to(devices[i])
        gradients_off = switches_gradients_off(submission.sum_gradients, replicas)
        held = [gradients_and_weights(replica) for replica in replicas]
        results.append({"replicas": held, "gradients_off": gradients_off})
    return results


def gradients_and_weights(replica):
    named = dict(replica.named_parameters())
    return {"gradients": {name: p.grad for name, p in named.items()}, "weights": named}


def model(dtype=torch.float64):
    """A new model that is the same each time."""
    return Specimen(seed=1).to(dtype)


def gradients_for(n, missing=None, dtype=torch.float64):
    """Gradients for n replicas.  ``missing`` says by name which replicas have none."""
    generator = torch.Generator().manual_seed(n)
    missing = (missing or {}) | {"frozen.weight": range(n)}
    return [
        {
            name: None
            if i in missing.get(name, ())
            else torch.randn(p.shape, generator=generator, dtype=dtype)
            for name, p in model().named_parameters()
        }
        for i in range(n)
    ]


def check(learner, cases, n, dtype=torch.float64):
    """Run all cases (gradients, order of GPUs) in one worker with n GPUs."""
    sent = [([model(dtype) for _ in order], gradients, order) for gradients, order in cases]
    answer = learner.run(drive, sent, gpus=n)
    for (gradients, order), result in zip(cases, answer.result, strict=True):
        report = Report(gradients, order, result["replicas"], answer.where)
        report.examine_names()
        for name in gradients[0]:
            report.examine(name)
        report.examine_weights(model(dtype))
        report.examine_grad_mode(result["gradients_off"])


@exercise("data_parallel.sum_gradients")
@pytest.mark.parametrize("n", [3, 2, 4])
def test_sum_on_the_first_replica(learner, n):
    check(learner, [(gradients_for(n), range(n))], n)


@exercise("data_parallel.sum_gradients")
@pytest.mark.parametrize("n", [3, 2, 4])
def test_missing_gradients(learner, n):
    missing = {"encode.bias": [n - 1], "decode.bias": [0], "gain.scale": range(n)}
    check(learner, [(gradients_for(n, missing), range(n))], n)


@exercise("data_parallel.sum_gradients")
def test_replicas_that_had_no_rows(learner):
    names = [name for name, _ in model().named_parameters()]
    rows_in = {1: 3, 2: 4, 3: 4}  # so many of so many replicas
    cases = [
        (gradients_for(n, {name: range(busy, n) for name in names}), range(n))
        for busy, n in rows_in.items()
    ]
    check(learner, cases, 4)


@exercise("data_parallel.sum_gradients")
def test_gpus_in_any_order(learner):
    orders = [[1, 0], [2, 0, 1], [1]]
    cases = [(gradients_for(len(order), {"encode.weight": [0]}), order) for order in orders]
    check(learner, cases, 3)


@exercise("data_parallel.sum_gradients")
def test_float32(learner):
    check(learner, [(gradients_for(3, dtype=torch.float32), range(3))], 3, torch.float32)
