"""What one process computes, and what known mistakes of a server and its workers compute instead.

The judge trains with every rule below.  ``right`` is ordinary training on the mean of the workers'
losses; each other rule is a mistake, and the weights it leads to betray it.
"""

from typing import Any

import torch
from torch import nn

loss_fn = nn.functional.mse_loss


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def momentum(parameters):
    """An optimizer may hold the parameters in another order than the model."""
    return torch.optim.SGD(list(parameters)[::-1], lr=0.1, momentum=0.9)


def decay(parameters):
    """Moves every parameter that has a gradient, be it zeros: frozen ones must have none."""
    return torch.optim.SGD(list(parameters)[::-1], lr=0.1, momentum=0.9, weight_decay=0.1)


def adam(parameters):
    """With a small eps its first steps would hide a factor in the gradients."""
    return torch.optim.Adam(parameters, lr=0.01, eps=0.1)


def filled(gradients, parameter):
    """The gradients of all workers, zeros for those that are missing."""
    return [torch.zeros_like(parameter) if g is None else g for g in gradients]


def mean(gradients, parameter):
    return sum(filled(gradients, parameter)) / len(gradients)


def mean_of_those_there(steps, parameter):
    there = [gradient for gradient in steps[-1] if gradient is not None]
    return sum(there) / len(there) if there else torch.zeros_like(parameter)


def latest(steps, parameter):
    """Gradients that stay until a newer one comes."""
    newest = list(steps[0])
    for step in steps[1:]:
        newest = [old if new is None else new for old, new in zip(newest, step, strict=True)]
    return mean(newest, parameter)


def divided_again(steps, parameter):
    """The sum is added to what the last step left, and all of it is divided."""
    left = torch.zeros_like(parameter)
    for step in steps:
        left = (left + sum(filled(step, parameter))) / len(step)
    return left


# A rule turns the gradients of all steps so far (per step one per worker, None where it is missing)
# into the gradient that the optimizer sees.
RULES = {
    "right": lambda steps, p: mean(steps[-1], p),
    "sum_not_mean": lambda steps, p: mean(steps[-1], p) * len(steps[-1]),
    "divided_by_world": lambda steps, p: mean(steps[-1], p) * len(steps[-1]) / (len(steps[-1]) + 1),
    "divided_twice": lambda steps, p: mean(steps[-1], p) / len(steps[-1]),
    "missing_left_out": mean_of_those_there,
    "one_worker_only, the last": lambda steps, p: filled(steps[-1], p)[-1],
    "one_worker_only, the first": lambda steps, p: filled(steps[-1], p)[0],
    "one_worker_only, the last, divided": lambda steps, p: (
        filled(steps[-1], p)[-1] / len(steps[-1])
    ),
    "one_worker_only, the first, divided": lambda steps, p: (
        filled(steps[-1], p)[0] / len(steps[-1])
    ),
    "old_gradients": lambda steps, p: sum(mean(step, p) for step in steps),
    "old_gradients, divided again": divided_again,
    "old_where_missing": latest,
    "no_gradients, none": lambda steps, p: None,
    "no_gradients, zeros": lambda steps, p: torch.zeros_like(p),
    "weights_as_gradients": lambda steps, p: p.detach().clone(),
}


def train(model_of, optimizer_of, batches, *, rule="right", anew=False):
    """The weights after every step, by name.  With ``anew`` each step has a new optimizer."""
    model = model_of()
    optimizer = optimizer_of(model.parameters())
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    history = {name: [] for name in trained}
    weights = []
    for workers in batches:
        per_worker = [gradients(model, trained, *rows) for rows in workers]
        for name, parameter in trained.items():
            history[name].append([own[name] for own in per_worker])
            parameter.grad = RULES[rule](history[name], parameter)
        if anew:
            optimizer = optimizer_of(model.parameters())
        optimizer.step()
        weights.append(weights_of(model))
    return weights


def gradients(model, trained, inputs, targets):
    """By name, None where the loss does not depend on the parameter."""
    loss = loss_fn(model(inputs), targets)
    found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    return dict(zip(trained, found, strict=True))


def weights_of(model):
    """A copy of all parameters, tied ones under each of their names."""
    named = model.named_parameters(remove_duplicate=False)
    return {name: parameter.detach().clone() for name, parameter in named}


def mistakes(model_of, optimizer_of, batches):
    """By name: the weights that a known mistake leads to, step by step."""
    known: dict[str, dict[str, Any]] = {rule: {"rule": rule} for rule in RULES if rule != "right"}
    known["optimizer_made_anew"] = {"anew": True}
    return {name: train(model_of, optimizer_of, batches, **how) for name, how in known.items()}
