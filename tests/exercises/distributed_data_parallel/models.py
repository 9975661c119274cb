"""Models that bring out what a wrapper can get wrong.  They travel into the ranks."""

import itertools
import time

import torch
from torch import nn

from multigpu.checking.specimen import Fork, Specimen, batch, seeded

SLOW = 0.06  # seconds that the backward of the first layer takes in Chain


class Pause(torch.autograd.Function):
    """Changes nothing; backward takes its time."""

    @staticmethod
    def forward(context, outputs):
        return outputs.view_as(outputs)

    @staticmethod
    def backward(context, gradient):
        time.sleep(SLOW)
        return gradient


class Chain(nn.Module):
    """Six layers without bias, each of another size; the gradient of the first one comes late."""

    def __init__(self, widths):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(fan_in, fan_out, bias=False, dtype=torch.float64)
            for fan_in, fan_out in itertools.pairwise(widths)
        )

    def forward(self, rows):
        first, *others = self.layers
        rows = Pause.apply(torch.tanh(first(rows)))
        for layer in others:
            rows = torch.tanh(layer(rows))
        return rows


def specimen(rank):
    """Tied, frozen and without dimension, with three kinds of buffers; other numbers per rank."""
    return Specimen(seed=7 + rank)


def with_nan(rank):
    """Ranks other than 0 begin with a nan and an inf: rank 0's numbers take their place."""
    model = specimen(rank)
    if rank:
        with torch.no_grad():
            model.decode.bias[0] = torch.nan
            model.running_mean[1] = torch.inf
    return model


WIDTHS = (3, 8, 5, 7, 4, 6, 2)


def chain(rank):
    return seeded(lambda: Chain(WIDTHS), 7 + rank)


def fork(rank):
    return seeded(Fork, 7 + rank)


def forked(world, steps):
    """Rows for Fork: rank by rank in turn narrow and wide, and the other way in the next step."""
    return [
        [[batch(3 + 3 * ((rank + s) % 2), 2, seed=100 * s + rank) for rank in range(world)]]
        for s in range(steps)
    ]


def accumulated(world):
    """Rows for Fork: two passes per step, of which the second one uses the other layer."""
    return [[forked(world, 2)[p][0] for p in range(2)] for _ in range(2)]
