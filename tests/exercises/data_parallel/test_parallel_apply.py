"""Checks of ``data_parallel.parallel_apply``: all forwards at once, nothing lost on the way."""

import contextlib

import pytest
import torch

from multigpu.checking import exercise

from .explain_parallel_apply import (
    examine,
    examine_error,
    examine_grad_mode,
    examine_gradients,
    examine_meeting,
)
from .meeting import Fails, Meeting, Scale

MODES = {
    "ordinary code": contextlib.nullcontext,
    "torch.no_grad()": torch.no_grad,
    "torch.inference_mode()": torch.inference_mode,
}


def drive(submission, devices, cases):
    """Apply one Scale per factor; replica i and chunk i lie on ``devices[order[i]]``."""
    results = []
    for factors, chunks, order in cases:
        replicas = tuple(Scale(i, f).to(devices[order[i]]) for i, f in enumerate(factors))
        placed = tuple(chunk.to(devices[i]) for chunk, i in zip(chunks, order, strict=False))
        results.append(submission.parallel_apply(replicas, placed))
    return results


def drive_meeting(submission, devices, factors, chunks):
    """The same with forwards that wait for each other, and finish in reverse order."""
    meeting = Meeting(len(factors), expected=len(chunks))
    replicas = [Scale(i, f, meeting).to(devices[i]) for i, f in enumerate(factors)]
    placed = [chunk.to(device) for chunk, device in zip(chunks, devices, strict=False)]
    outputs = submission.parallel_apply(replicas, placed)
    return {
        "outputs": list(outputs) if isinstance(outputs, list | tuple) else outputs,
        "finished": sum(meeting.finished),
        "calls": list(meeting.calls),
        "most_present": meeting.most_present,
    }


def drive_modes(submission, devices, factors, chunks, modes):
    """Apply in each grad mode; in ordinary code go on with backward."""
    replicas = [Scale(i, f).to(devices[i]) for i, f in enumerate(factors)]
    placed = [chunk.to(device) for chunk, device in zip(chunks, devices, strict=True)]
    results = {}
    for name, mode in modes.items():
        with mode():
            results[name] = submission.parallel_apply(replicas, placed)
    for output in results["ordinary code"]:
        if output.requires_grad:
            output.sum().backward()
    return {"outputs": results, "gradients": [replica.factor.grad for replica in replicas]}


def drive_errors(submission, devices, chunks, failing):
    """Let one replica fail after the other, and tell what was raised each time.

    No replica has the number of its GPU.
    """
    devices = [*devices[1:], devices[0]]
    reports = []
    for bad in failing:
        replicas = [
            (Fails(i) if i == bad else Scale(i, 1.0)).to(device) for i, device in enumerate(devices)
        ]
        placed = [chunk.to(device) for chunk, device in zip(chunks, devices, strict=True)]
        try:
            reports.append({"returned": submission.parallel_apply(replicas, placed)})
        except Exception as error:
            reports.append({"raised": [tell(e) for e in family_of(error)]})
    return reports


def family_of(error):
    """An error with its causes and, for a group, its members."""
    family = [error]
    for member in family:
        relatives = [member.__cause__, member.__context__, *getattr(member, "exceptions", ())]
        family += [e for e in relatives if e is not None and e not in family]
    return family


def tell(error):
    return {
        "type": type(error).__name__,
        "text": str(error),
        "notes": [str(note) for note in getattr(error, "__notes__", [])],
    }


def factors_and_chunks(n, replicas=None):
    """Every product of a factor with a chunk is there only once."""
    factors = [1.0 + i for i in range(replicas or n)]
    rows = [2] * (n - 1) + [1]
    numbers = 0.125 + torch.arange(2 * sum(rows), dtype=torch.float64).reshape(-1, 2) * 31
    return factors, list(numbers.split(rows))


def check(learner, cases):
    """Run all cases (factors, chunks, order of GPUs) in one worker with 4 GPUs."""
    answer = learner.run(drive, cases, gpus=4)
    for (factors, chunks, order), outputs in zip(cases, answer.result, strict=True):
        examine(outputs, factors, chunks, order, answer.where)


@exercise("data_parallel.parallel_apply")
@pytest.mark.parametrize(("n", "replicas"), [(3, 3), (2, 2), (4, 4), (2, 4), (5, 5)])
def test_all_at_the_same_time_and_in_order(learner, n, replicas):
    factors, chunks = factors_and_chunks(n, replicas)
    answer = learner.run(drive_meeting, factors, chunks, gpus=replicas)
    examine_meeting(answer.result, factors, chunks, answer.where)


@exercise("data_parallel.parallel_apply")
def test_gpus_in_any_order(learner):
    orders = [[3, 1, 0, 2], [1, 0], [2]]
    check(learner, [(*factors_and_chunks(len(order)), order) for order in orders])


@exercise("data_parallel.parallel_apply")
def test_fewer_chunks_than_replicas(learner):
    sizes = [(2, 3), (1, 2), (1, 4), (3, 4)]
    check(learner, [(*factors_and_chunks(n, more), range(more)) for n, more in sizes])


@exercise("data_parallel.parallel_apply")
@pytest.mark.parametrize("n", [2, 3])
def test_grad_mode_of_the_caller(learner, n):
    factors, chunks = factors_and_chunks(n)
    answer = learner.run(drive_modes, factors, chunks, MODES, gpus=n)
    for mode in MODES:
        outputs = answer.result["outputs"][mode]
        examine(outputs, factors, chunks, range(n), answer.where)
        examine_grad_mode(mode, [output.requires_grad for output in outputs], answer.where)
    examine_gradients(answer.result["gradients"], chunks, answer.where)


@exercise("data_parallel.parallel_apply")
@pytest.mark.parametrize("n", [3, 2, 4])
def test_errors_are_raised_and_name_the_replica(learner, n):
    _, chunks = factors_and_chunks(n)
    answer = learner.run(drive_errors, chunks, range(n), gpus=n)
    for bad, report in enumerate(answer.result):
        examine_error(bad, report, answer.where)
