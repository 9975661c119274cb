"""What one GPU computes, and what known mistakes compute instead.

The judge trains a model with every rule below.  ``right`` is ordinary training on whole batches;
each other rule is a mistake, and the weights it leads to betray it.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch

LEARNING_RATE, MOMENTUM = 0.1, 0.9


@dataclass(frozen=True)
class Part:
    """The share of one replica: its part of the rows, and one parameter's gradient of its loss."""

    share: float
    gradient: torch.Tensor

    @property
    def weighted(self):
        return self.share * self.gradient


def whole(parts):
    return sum(part.weighted for part in parts)


def others(parts):
    return sum(part.weighted for part in parts[1:])


def still_there(steps):
    """Gradients in replicas that were cleared only when they had rows."""
    latest = {}
    for parts in steps:
        latest |= {i: part.weighted for i, part in enumerate(parts)}
    return sum(latest.values())


# A rule turns the parts of all steps so far into the gradient that the optimizer sees.
GRADIENT_RULES = {
    "right": lambda steps, n: whole(steps[-1]),
    "gradients_not_summed": lambda steps, n: steps[-1][0].weighted,
    "first_chunk_only": lambda steps, n: steps[-1][0].gradient,
    "mean_of_chunk_means": lambda steps, n: sum(p.gradient for p in steps[-1]) / len(steps[-1]),
    "losses_added": lambda steps, n: sum(p.gradient for p in steps[-1]),
    "gradients_divided": lambda steps, n: whole(steps[-1]) / n,
    "gradients_divided by chunks": lambda steps, n: whole(steps[-1]) / len(steps[-1]),
    "gradients_never_cleared in the first": lambda steps, n: sum(map(whole, steps)),
    "gradients_never_cleared": lambda steps, n: (
        sum(map(whole, steps))
        + sum(others(parts) for s in range(1, len(steps)) for parts in steps[:s])
    ),
    "old_gradients_in_replicas": lambda steps, n: steps[-1][0].weighted + sum(map(others, steps)),
    "old_gradients_in_replicas without rows": lambda steps, n: still_there(steps),
}


def train(
    model, batches, loss_fn, n, *, rule="right", momentum=MOMENTUM, repeat=1, cut=False, zeros=False
):
    """Train a copy of ``model`` on n replicas' worth of chunks.

    Returns the weights after every step, and the loss before it.  ``repeat`` is how often the
    optimizer steps; with ``cut`` the rows that do not divide by n are left out; with ``zeros`` a
    parameter that a step does not use has a gradient of zeros instead of none.
    """
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, momentum=momentum)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    steps, weights, losses = {name: [] for name in trained}, [], []
    for inputs, targets in batches:
        if cut:
            rows = len(inputs) // n * n or len(inputs)
            inputs, targets = inputs[:rows], targets[:rows]
        losses.append(loss_fn(model(inputs), targets).item())
        for name, parts in parts_of(model, trained, inputs, targets, loss_fn, n).items():
            if parts:
                steps[name].append(parts)
                trained[name].grad = GRADIENT_RULES[rule](steps[name], n)
            else:
                trained[name].grad = torch.zeros_like(trained[name]) if zeros else None
        for _ in range(repeat):
            optimizer.step()
        weights.append({name: p.detach().clone() for name, p in model.named_parameters()})
    return weights, losses


def parts_of(model, trained, inputs, targets, loss_fn, n):
    """Per parameter, one Part per chunk, and none where the model did not use it."""
    parts = {name: [] for name in trained}
    for x, y in zip(inputs.chunk(n), targets.chunk(n), strict=True):
        loss = loss_fn(model(x), y)
        gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        for name, gradient in zip(trained, gradients, strict=True):
            if gradient is not None:
                parts[name].append(Part(len(x) / len(inputs), gradient))
    return parts


def mistakes(model, batches, loss_fn, n):
    """By name: the weights that a known mistake leads to, step by step."""
    known: dict[str, dict[str, Any]] = {
        **{rule: {"rule": rule} for rule in GRADIENT_RULES if rule != "right"},
        "momentum_lost": {"momentum": 0.0},
        "two_steps": {"repeat": 2},
        "no_step": {"repeat": 0},
        "rows_dropped": {"cut": True},
        "unused_layer_moved": {"zeros": True},
    }
    return {name: train(model, batches, loss_fn, n, **how)[0] for name, how in known.items()}
