"""Models in four layers, cut into as many stages as there are ranks, and their batches.

All numbers between stages are float32.  A case has the ``kind`` of its model and the ``rows`` of
its micro-batches; what one process computes with them is ``uncut``.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import nn
from torch.nn import functional as F

from multigpu.checking.specimen import seeded

LENGTH, TOKENS = 5, 7  # of a sequence


class Residual(nn.Module):
    """Keeps the shape, whatever it is: the last dimension is ``width``."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, rows):
        return rows + torch.tanh(self.linear(rows))


def vectors():
    """(rows, 5) becomes (rows, 4), (rows, 6), (rows, 3) and (rows, 2)."""
    layers = [nn.Linear(5, 4), nn.Linear(4, 6), nn.Linear(6, 3)]
    return [*(nn.Sequential(layer, nn.Tanh()) for layer in layers), nn.Linear(3, 2)]


def sequences():
    """Tokens (rows, 5), int64, become (rows, 5, 4), (rows, 5, 2, 2), (rows, 5, 4), (rows, 5, 7)."""
    return [
        nn.Embedding(TOKENS, 4),
        nn.Sequential(Residual(4), nn.Unflatten(-1, (2, 2))),
        nn.Sequential(nn.Flatten(2), Residual(4)),
        nn.Linear(4, TOKENS),
    ]


def token_loss(scores, targets):
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def vector_rows(count, generator):
    return [torch.randn(count, width, generator=generator) for width in (5, 2)]


def sequence_rows(count, generator):
    return [torch.randint(TOKENS, (count, LENGTH), generator=generator) for _ in range(2)]


KINDS = {  # layers, rows and loss
    "vectors": (vectors, vector_rows, nn.MSELoss()),
    "sequences": (sequences, sequence_rows, token_loss),
}


def stages_of(case):
    """A new model, always the same, as one module per stage."""
    layers = seeded(KINDS[case.kind][0], 5)
    parts = torch.arange(len(layers)).tensor_split(case.world)
    return [nn.Sequential(*(layers[i] for i in part)) for part in parts]


def loss_of(case):
    return KINDS[case.kind][2]


def microbatches_of(case, step):
    generator = torch.Generator().manual_seed(100 * step + len(case.rows))
    return [tuple(KINDS[case.kind][1](count, generator)) for count in case.rows]


def begin(layers, case, step):
    """In each step other weights, and the gradients of an earlier batch, or none."""
    layers.zero_grad()
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter *= 1.25 if step else 1
            if case.before:
                parameter.grad = torch.full_like(parameter, case.before)


@dataclass(frozen=True)
class Step:
    """One batch in one process: what each stage takes, ``inputs[stage][m]`` for micro-batch m, the
    gradients by stage and name, and the mean loss.
    """

    inputs: list
    gradients: list
    loss: float


@cache
def uncut(case):
    """The steps of a case, in one process with the whole model."""
    stages, steps = stages_of(case), []
    whole = nn.Sequential(*stages)
    for number in range(case.steps):
        begin(whole, case, number)
        microbatches = microbatches_of(case, number)
        rows, targets = (torch.cat(parts) for parts in zip(*microbatches, strict=True))
        loss = loss_of(case)(whole(rows), targets)
        loss.backward()
        gradients = [{n: p.grad.clone() for n, p in s.named_parameters()} for s in stages]
        steps.append(Step(inputs_of(stages, microbatches), gradients, loss.item()))
    return steps


@torch.no_grad()
def inputs_of(stages, microbatches):
    taken = [[inputs for inputs, _ in microbatches]]
    for layers in stages[:-1]:
        taken.append([layers(inputs) for inputs in taken[-1]])
    return taken
