"""Lets a learner's server and workers train, and collects what each of them holds."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from multigpu.checking.verdicts import Refused
from multigpu.checking.worker import definition_line
from multigpu.ranks import rank_device

from .stuck import in_own_words
from .training import loss_fn, train, weights_of


def drive(submission, exercise, plans):
    """Train one model after the other.  Tell after each step of each what this rank holds."""
    models = []
    return [drive_one(submission, exercise, models, *plan) for plan in plans]


def drive_one(submission, exercise, models, model_of, optimizer_of, batches):
    """Train a model: rank 0 is the server.  It joins ``models``, those that were trained before."""
    rank, world = dist.get_rank(), dist.get_world_size()
    place = rank_device() if dist.get_backend() == "nccl" else "cpu"  # gloo sends from the CPU
    model, steps, stepped = model_of().to(place), [], []
    own = "worker_step" if rank else "server_step"
    earlier = list(models)
    models.append(model)
    if rank == 0:
        optimizer = optimizer_of(model.parameters())
        optimizer.register_step_post_hook(lambda *_: stepped.append(time.monotonic()))
    for number, workers in enumerate(batches, 1):
        if rank:
            inputs, targets = (rows.to(place) for rows in workers[rank - 1])
            loss = loss_fn(model(inputs), targets)
        before = copies(model.named_buffers())
        held = copies(held_by(earlier))
        stepped.clear()
        began = time.monotonic()
        try:
            if rank:
                submission.worker_step(model, loss)
            else:
                submission.server_step(model, optimizer)
        except Exception as error:
            error.add_note(
                ("" if own == exercise else f"in {own}, which {exercise} works with, ")
                + f"in step {number} with {world - 1} worker(s)"
                + after_another(len(earlier))
            )
            if isinstance(error, NotImplementedError) and own != exercise:
                time.sleep(0.2)  # if the exercise itself is not written either, it says so first
            raise
        steps.append(
            {
                "times": (began, time.monotonic()),
                "elsewhere": None if own == exercise else place_of(submission, own),
                "stepped": list(stepped),
                "weights": weights_of(model),
                "gradients": copies((n, p.grad) for n, p in model.named_parameters()),
                "buffers_changed": changed(before, dict(model.named_buffers())),
                "earlier_changed": changed(held, dict(held_by(earlier))),
            }
        )
    return steps


def place_of(submission, name):
    """``model_server.py:41``: where a function of the learner's begins; None if nobody knows."""
    found = definition_line(getattr(submission, name, None))
    return f"{Path(found[0]).name}:{found[1]}" if found else None


def after_another(models):
    """What a message says where other models were trained before."""
    return ", after another model" if models else ""


def held_by(models):
    """The weights and gradients of all these, each under a name that says what it is."""
    for model in models:
        for name, parameter in model.named_parameters():
            yield f"the weights of {name}", parameter
            yield f"the gradient of {name}", parameter.grad


def copies(named):
    return {name: None if t is None else t.detach().clone() for name, t in named}


def changed(before, now):
    return [name for name, old in before.items() if not identical(now.get(name), old)]


def identical(tensor, old):
    if tensor is None or old is None:
        return tensor is old
    return tensor.dtype == old.dtype and torch.equal(tensor, old)


@dataclass(frozen=True)
class Side:
    """What one rank held after one step, and the calls that it made in it.

    ``earlier_changed`` names what this step changed in models that were trained before.
    """

    rank: int
    step: int
    weights: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor | None]
    stepped: list[float]
    buffers_changed: list[str]
    earlier_changed: list[str]
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
    """The training of one model: what went in and what came out.

    ``sides[step][rank]`` is a Side.  So many models were trained before: ``earlier``.
    ``exercise`` is the one of the two functions that is checked.
    """

    model_of: Callable
    optimizer_of: Callable
    batches: list
    world: int
    earlier: int = 0
    sides: list[list[Side]] = field(default_factory=list)
    exercise: str = ""

    @property
    def workers(self):
        """Their number: the server takes a mean over so many."""
        return self.world - 1

    @cached_property
    def right(self):
        """The weights that one process has after each step."""
        return train(self.model_of, self.optimizer_of, self.batches)


def run(learner, plans, world):
    """The Training of each ``(model_of, optimizer_of, batches)``, all in the same processes."""
    try:
        answer = learner.run_ranks(drive, learner.exercise.function, plans, world=world)
    except Refused as refused:
        raise in_own_words(refused, learner.exercise.function) from None
    return [
        Training(
            *(model_of, optimizer_of, batches),
            world,
            number,
            sides_of(answer, number, len(batches)),
            learner.exercise.function,
        )
        for number, (model_of, optimizer_of, batches) in enumerate(plans)
    ]


def sides_of(answer, number, steps):
    """The sides of the training with this number, step by step."""
    ranks = range(len(answer.results))
    return [[side(answer, rank, number, step) for rank in ranks] for step in range(steps)]


def side(answer, rank, number, step):
    """One rank's result of one step, with the calls that it made in that time."""
    result = dict(answer.results[rank][number][step])
    began, ended = result.pop("times")
    where = result.pop("elsewhere") or answer.wheres[rank]
    calls = tuple(call for call in answer.trace.of(rank) if began <= call.time <= ended)
    for kind in ("weights", "gradients"):
        result[kind] = {n: None if t is None else t.value for n, t in result[kind].items()}
    return Side(rank, step, calls=calls, where=where, **result)
