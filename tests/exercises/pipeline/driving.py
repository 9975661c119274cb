"""Runs on the ranks: lets a learner's ``run`` train a stage that notes what it is asked for."""

import time
from functools import partial
from weakref import WeakSet, ref

import torch
import torch.distributed as dist
from torch import nn

from multigpu.ranks import rank_device

LEARNING_RATE = 0.5


class Kept:
    """What a forward keeps for its backward; torch lets it go when backward is done."""

    def __init__(self, tensor):
        self.tensor = tensor


class Watched(nn.Module):
    """A stage that notes each forward with its input, and each backward with its gradient.

    ``events`` are dicts; ``call`` counts the forwards.  ``kept`` names the calls whose graphs are
    still there at that moment, ``made`` those whose outputs are.
    """

    def __init__(self, layers):
        super().__init__()
        self.layers = layers
        self.events, self.graphs, self.outputs = [], [], []

    def forward(self, rows):
        call = len(self.graphs)
        note = {"kind": "forward", "call": call, **self.alive()}
        self.events.append(note | {"tensor": copy_of(rows), "graph": torch.is_grad_enabled()})
        self.graphs.append(WeakSet())
        hooks = torch.autograd.graph.saved_tensors_hooks(
            partial(self.keep, call), lambda kept: kept.tensor
        )
        with hooks:
            made = self.layers(rows)
        self.outputs.append(ref(made))
        if made.requires_grad:
            made.register_hook(partial(self.note_backward, call))
        return made

    def keep(self, call, tensor):
        kept = Kept(tensor)
        self.graphs[call].add(kept)
        return kept

    def note_backward(self, call, gradient):
        note = {"kind": "backward", "call": call, **self.alive()}
        self.events.append(note | {"tensor": copy_of(gradient)})

    def alive(self):
        made = [call for call, output in enumerate(self.outputs) if output() is not None]
        return {"kept": self.kept(), "made": made}

    def kept(self):
        return [call for call, graph in enumerate(self.graphs) if len(graph)]


def copy_of(value):
    """A tensor as it is now; of anything else its type is told."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else type(value).__name__


def drive(submission, cases):
    """Train each case for its steps.  Tell of each step what this rank returned and holds."""
    return [drive_one(submission, case) for case in cases]


def drive_one(submission, case):
    rank, world = dist.get_rank(), dist.get_world_size()
    place = rank_device() if dist.get_backend() == "nccl" else "cpu"  # gloo sends from the CPU
    layers, steps = case.stages()[rank].to(place), []
    for step in range(case.steps):
        stage = Watched(layers)
        microbatches = [tuple(part.to(place) for part in pair) for pair in case.microbatches(step)]
        begin_with(case.before, layers)
        began = time.monotonic()
        try:
            returned = submission.run(stage, case.table, microbatches, case.loss_fn())
        except Exception as error:
            sizes = ", ".join(map(str, case.rows))
            error.add_note(f"on {world} rank(s), with micro-batches of {sizes} rows: {case.kind}")
            raise
        steps.append(
            {
                "times": (began, time.monotonic()),
                "returned": returned,
                "events": stage.events,
                "left": stage.kept(),
                "gradients": {n: copy_or_none(p.grad) for n, p in layers.named_parameters()},
            }
        )
        move(layers)
    return steps


def begin_with(value, layers):
    """Gradients of an earlier batch; none if the value is zero."""
    layers.zero_grad()
    if value:
        for parameter in layers.parameters():
            parameter.grad = torch.full_like(parameter, value)


def copy_or_none(gradient):
    return None if gradient is None else gradient.detach().clone()


@torch.no_grad()
def move(layers):
    """A step of plain SGD."""
    for parameter in layers.parameters():
        if parameter.grad is not None:
            parameter -= LEARNING_RATE * parameter.grad
