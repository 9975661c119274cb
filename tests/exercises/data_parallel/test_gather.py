"""Checks of ``data_parallel.gather``: one tensor from many, and the gradient's way back."""

import pytest
import torch

from multigpu.checking import exercise

from .explain_gather import examine, examine_gradients


def drive(submission, devices, cases):
    """Gather the outputs, which lie on the GPUs ``homes``, on the GPU ``target``."""
    results = []
    for outputs, homes, target in cases:
        placed = [output.to(devices[home]) for output, home in zip(outputs, homes, strict=True)]
        results.append(submission.gather(placed, devices[target]))
    return results


def drive_backward(submission, devices, outputs, homes, target, weights):
    """Gather, then tell which gradients arrive at the outputs if the result's is ``weights``."""
    leaves = [
        output.to(devices[home]).detach().requires_grad_()
        for output, home in zip(outputs, homes, strict=True)
    ]
    result = submission.gather(tuple(2 * leaf for leaf in leaves), devices[target])
    if isinstance(result, torch.Tensor) and result.requires_grad:
        (result * weights.to(result.device)).sum().backward()
    return {"result": result, "gradients": [leaf.grad for leaf in leaves]}


def outputs_of(rows, *shape, dtype=torch.float64):
    """Outputs with so many rows each; no number comes twice."""
    numbers = torch.arange(1, 1 + sum(rows) * torch.Size(shape).numel())
    return list(numbers.reshape(sum(rows), *shape).to(dtype).split(rows))


def check(learner, cases, n):
    """Run all cases (outputs, their GPUs, target GPU) in one worker with n GPUs."""
    answer = learner.run(drive, cases, gpus=n)
    for (outputs, homes, target), result in zip(cases, answer.result, strict=True):
        examine(outputs, homes, target, result, answer.where)


@exercise("data_parallel.gather")
@pytest.mark.parametrize("n", [2, 3, 4])
def test_outputs_of_equal_size(learner, n):
    check(learner, [(outputs_of([2] * n, 3), range(n), 0)], n)


@exercise("data_parallel.gather")
@pytest.mark.parametrize("n", [2, 3, 4])
def test_outputs_of_different_size(learner, n):
    sizes = [3] * (n - 1) + [1], [1, 3, 2, 4][:n]
    check(learner, [(outputs_of(rows, 2), range(n), 0) for rows in sizes], n)


@exercise("data_parallel.gather")
def test_numbers_that_another_type_would_round(learner):
    thirds = [output / 3 for output in outputs_of([2, 2, 1], 2)]
    kinds = [[output.float() for output in thirds], thirds]
    check(learner, [(outputs, range(3), 0) for outputs in kinds], 3)


@exercise("data_parallel.gather")
@pytest.mark.parametrize("n", [2, 3, 4])
def test_gradients_flow_back(learner, n):
    homes = list(reversed(range(n)))
    rows = [1, 3, 2, 4][:n]
    outputs = outputs_of(rows, 3)
    weights = torch.linspace(1, 2, 3 * sum(rows), dtype=torch.float64).reshape(-1, 3)
    answer = learner.run(drive_backward, outputs, homes, n - 1, weights, gpus=n)
    doubled = [2 * output for output in outputs]
    examine(doubled, homes, n - 1, answer.result["result"], answer.where)
    examine_gradients(answer.result, (2 * weights).split(rows), homes, answer.where)


@exercise("data_parallel.gather")
def test_gpus_in_any_order(learner):
    places = [([2, 0, 1], 0), ([1, 0], 1), ([3, 1, 0], 2), ([1], 0), ([0], 0), ([0, 0, 1], 1)]
    check(
        learner,
        [(outputs_of([2] * (len(homes) - 1) + [1], 2), homes, gpu) for homes, gpu in places],
        4,
    )


@exercise("data_parallel.gather")
def test_any_shape_and_type(learner):
    kinds = [((), torch.float64), ((1, 2, 2), torch.float32), ((2,), torch.int64)]
    check(
        learner,
        [(outputs_of([3, 3, 1], *shape, dtype=dtype), range(3), 0) for shape, dtype in kinds],
        3,
    )
