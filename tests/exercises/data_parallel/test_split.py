"""Checks of ``data_parallel.split``: which rows go to which GPU."""

import pytest
import torch

from multigpu.checking import exercise

from .arguments import Kept
from .explain_split import examine, examine_batch


def drive(submission, devices, cases):
    """Split each batch over the GPUs in ``order``, starting from GPU ``source`` or the CPU."""
    results = []
    for batch, order, source in cases:
        placed = batch if source is None else batch.to(devices[source])
        kept = Kept(batch=placed)
        chunks = submission.split(placed, type(order)(devices[i] for i in order))
        results.append({"chunks": chunks, "changed": kept.changed()})
    return results


def batch_of(rows, *shape, dtype=torch.float32):
    """A batch in which every number is there once, so that a row can be recognised."""
    numbers = rows * torch.Size(shape).numel()
    return torch.arange(numbers).reshape(rows, *shape).to(dtype)


def check(learner, cases, n):
    """Run all cases (batch, order of GPUs, where the batch lies) in one worker with n GPUs."""
    answer = learner.run(drive, cases, gpus=n)
    for (batch, order, _), result in zip(cases, answer.result, strict=True):
        examine(batch, result["chunks"], [f"cuda:{i}" for i in order], n, answer.where)
        examine_batch(result["changed"], answer.where)


@exercise("data_parallel.split")
@pytest.mark.parametrize("n", [2, 3, 4])
def test_rows_that_divide(learner, n):
    check(learner, [(batch_of(rows, 4), [*range(n)], None) for rows in (5 * n, n)], n)


@exercise("data_parallel.split")
@pytest.mark.parametrize("n", [2, 3, 4])
def test_rows_that_do_not_divide(learner, n):
    sizes = [rows for rows in (7, 10, 2 * n + 1, 3 * n - 1, 5) if rows % n]
    check(learner, [(batch_of(rows, 2), [*range(n)], None) for rows in sizes], n)


@exercise("data_parallel.split")
@pytest.mark.parametrize("n", [2, 3, 4])
def test_fewer_rows_than_gpus(learner, n):
    check(learner, [(batch_of(rows, 2), [*range(n)], None) for rows in range(1, n)], n)


@exercise("data_parallel.split")
def test_gpus_in_any_order(learner):
    orders = [[1, 0], [2, 0, 1], (3, 1, 2, 0), (3, 2), [1], [0]]
    check(learner, [(batch_of(7, 2), order, None) for order in orders], 4)


@exercise("data_parallel.split")
def test_any_shape_and_type(learner):
    batches = [
        batch_of(5, dtype=torch.int64),  # labels
        batch_of(5, 1, 4, 4),  # images
        batch_of(5, 2, 3, dtype=torch.float64),
        batch_of(2, 2, dtype=torch.int32),
    ]
    check(learner, [(batch, (0, 1, 2), None) for batch in batches], 3)


@exercise("data_parallel.split")
def test_numbers_that_another_type_would_round(learner):
    thirds = torch.arange(1, 11, dtype=torch.float64).reshape(5, 2) / 3
    bits = torch.tensor([[0, 0, 1], [0, 1, 0], [0, 1, 1], [1, 0, 0], [1, 0, 1]], dtype=torch.bool)
    batches = [
        thirds.float(),
        thirds.bfloat16(),
        thirds,
        bits,
        2**53 + batch_of(5, 2, dtype=torch.int64),
    ]
    check(learner, [(batch, [0, 1, 2], None) for batch in batches], 3)


@exercise("data_parallel.split")
def test_rows_that_do_not_lie_together_in_memory(learner):
    transposed = [batch_of(3, 5).T, batch_of(2, 7, 3).transpose(0, 1)]
    check(learner, [(batch, [0, 1, 2], None) for batch in transposed], 3)


@exercise("data_parallel.split")
def test_a_batch_that_is_on_a_gpu_already(learner):
    check(learner, [(batch_of(5, 2), [0, 1, 2], source) for source in (0, 1)], 3)
