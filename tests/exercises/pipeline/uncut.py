"""What the uncut model computes, micro-batch by micro-batch, in one process.

The judge computes with it: what each stage takes and gives, and the gradients that belong to it.
"""

from dataclasses import dataclass

import torch
from torch import nn

from .driving import move


@dataclass(frozen=True)
class Step:
    """One batch.  Lists go by ``[stage][m]`` for micro-batch m; ``losses[m]`` is its mean loss.

    ``inputs`` is what a stage takes, ``output_gradients`` the gradient of the mean loss of one
    micro-batch by what the stage returns, ``gradients`` those by its parameters, by name.  None of
    them is weighed.  ``right`` are the gradients of the whole batch, ``loss`` is its mean.
    """

    inputs: list
    output_gradients: list
    gradients: list
    losses: list
    rows: list
    right: list
    loss: float

    @property
    def shares(self):
        """The weight of each micro-batch in the mean over rows."""
        return [count / sum(self.rows) for count in self.rows]

    def weighed(self, stage, weights):
        """The gradients of a stage if micro-batch m counts ``weights[m]``."""
        parts = [
            {name: weight * gradient for name, gradient in own.items()}
            for weight, own in zip(weights, self.gradients[stage], strict=True)
        ]
        return {name: sum(part[name] for part in parts) for name in parts[0]}


def train(case):
    """The steps of a case."""
    stages, steps = case.stages(), []
    for number in range(case.steps):
        step = compute(stages, case.microbatches(number), case.loss_fn())
        for layers, gradients in zip(stages, step.right, strict=True):
            for name, parameter in layers.named_parameters():
                parameter.grad = gradients[name]
            move(layers)
        steps.append(step)
    return steps


def compute(stages, microbatches, loss_fn):
    """All of one batch."""
    passes = [one_pass(stages, inputs, targets, loss_fn) for inputs, targets in microbatches]
    inputs, output_gradients, gradients = (
        [[one[kind][stage] for one in passes] for stage in range(len(stages))] for kind in range(3)
    )
    whole = nn.Sequential(*stages)
    whole.zero_grad()
    rows, targets = (torch.cat(parts) for parts in zip(*microbatches, strict=True))
    loss = loss_fn(whole(rows), targets)
    loss.backward()
    return Step(
        inputs,
        output_gradients,
        gradients,
        [one[3] for one in passes],
        [len(rows) for rows, _ in microbatches],
        [{n: p.grad.clone() for n, p in layers.named_parameters()} for layers in stages],
        loss.item(),
    )


def one_pass(stages, inputs, targets, loss_fn):
    """Forward and backward of one micro-batch, with everything in between."""
    for layers in stages:
        layers.zero_grad()
    taken, made = [], []
    for layers in stages:
        taken.append(inputs.detach())
        inputs = layers(inputs)
        inputs.retain_grad()
        made.append(inputs)
    loss = loss_fn(inputs, targets)
    loss.backward()
    gradients = [{n: p.grad.clone() for n, p in layers.named_parameters()} for layers in stages]
    return taken, [output.grad for output in made], gradients, loss.item()
