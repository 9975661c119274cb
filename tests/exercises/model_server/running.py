"""Lets a learner's server and workers train, and collects what each of them holds."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist

from multigpu.checking.verdicts import Refused
from multigpu.ranks import rank_device

from .stuck import in_own_words
from .training import loss_fn, train, weights_of


def drive(submission, exercise, model_of, optimizer_of, batches):
    """Train: rank 0 is the server.  Tell after each step what this rank holds."""
    rank, world = dist.get_rank(), dist.get_world_size()
    place = rank_device() if dist.get_backend() == "nccl" else "cpu"  # gloo sends from the CPU
    model, steps, stepped = model_of().to(place), [], []
    if rank == 0:
        optimizer = optimizer_of(model.parameters())
        optimizer.register_step_post_hook(lambda *_: stepped.append(time.monotonic()))
    for number, workers in enumerate(batches, 1):
        if rank:
            inputs, targets = (rows.to(place) for rows in workers[rank - 1])
            loss = loss_fn(model(inputs), targets)
        before = copies(model.named_buffers())
        stepped.clear()
        began = time.monotonic()
        try:
            if rank:
                submission.worker_step(model, loss)
            else:
                submission.server_step(model, optimizer)
        except Exception as error:
            error.add_note(f"in step {number} with {world - 1} worker(s)")
            if isinstance(error, NotImplementedError) and (exercise == "worker_step") != bool(rank):
                time.sleep(0.2)  # if the exercise itself is not written either, it says so first
            raise
        steps.append(
            {
                "times": (began, time.monotonic()),
                "stepped": list(stepped),
                "weights": weights_of(model),
                "gradients": copies((n, p.grad) for n, p in model.named_parameters()),
                "buffers_changed": changed(before, dict(model.named_buffers())),
            }
        )
    return steps


def copies(named):
    return {name: None if t is None else t.detach().clone() for name, t in named}


def changed(before, now):
    return [name for name, old in before.items() if not identical(now.get(name), old)]


def identical(tensor, old):
    return tensor is not None and tensor.dtype == old.dtype and torch.equal(tensor, old)


@dataclass(frozen=True)
class Side:
    """What one rank held after one step, and the calls that it made in it."""

    rank: int
    step: int
    weights: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor | None]
    stepped: list[float]
    buffers_changed: list[str]
    calls: tuple[Any, ...]
    where: str

    @property
    def name(self):
        return f"worker {self.rank}" if self.rank else "the server"

    @property
    def function(self):
        return "worker_step" if self.rank else "server_step"


@dataclass(frozen=True)
class Training:
    """A training run: what went in and what came out.  ``sides[step][rank]`` is a Side."""

    model_of: Callable
    optimizer_of: Callable
    batches: list
    world: int
    sides: list[list[Side]] = field(default_factory=list)

    @cached_property
    def right(self):
        """The weights that one process has after each step."""
        return train(self.model_of, self.optimizer_of, self.batches)


def run(learner, model_of, optimizer_of, batches, world):
    try:
        answer = learner.run_ranks(
            drive, learner.exercise.function, model_of, optimizer_of, batches, world=world
        )
    except Refused as refused:
        raise in_own_words(refused, learner.exercise.function) from None
    sides = [[side(answer, rank, step) for rank in range(world)] for step in range(len(batches))]
    return Training(model_of, optimizer_of, batches, world, sides)


def side(answer, rank, step):
    """One rank's result of one step, with the calls that it made in that time."""
    result = dict(answer.results[rank][step])
    began, ended = result.pop("times")
    calls = tuple(call for call in answer.trace.of(rank) if began <= call.time <= ended)
    for kind in ("weights", "gradients"):
        result[kind] = {n: None if t is None else t.value for n, t in result[kind].items()}
    return Side(rank, step, calls=calls, where=answer.wheres[rank], **result)
