"""Models whose optimizer is shared out, and the rows of the ranks.  They travel into the ranks.

``Specimen`` (multigpu.checking.specimen) has tied, frozen and zero-dimensional parameters.
"""

import functools
import itertools

import torch
from torch import nn

from multigpu.checking.specimen import Fork, Specimen, batch, seeded

WIDTHS = (6, 7) * 7 + (6,)


class Deep(nn.Module):
    """Fourteen layers of 42 numbers, without bias: a share of them is much more than one."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(fan_in, fan_out, bias=False, dtype=torch.float64)
            for fan_in, fan_out in itertools.pairwise(WIDTHS)
        )

    def forward(self, rows):
        """(rows, 6) to (rows, 6)."""
        for layer in self.layers:
            rows = rows + 0.5 if rows.shape[1] == 7 else rows
            rows = torch.tanh(2 * layer(rows))
        return rows


class Biased(nn.Module):
    """Large weights and small biases in turn, then as many small scales.

    Every second parameter has nearly everything, and so has the first half of them.
    """

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8, dtype=torch.float64) for _ in range(6)))
        self.scales = nn.ParameterList(
            1 + torch.randn(8, dtype=torch.float64) / 10 for _ in range(12)
        )

    def forward(self, rows):
        """(rows, 8) to (rows, 8)."""
        for layer in self.layers:
            rows = torch.tanh(layer(rows))
        for scale in self.scales:
            rows = rows * scale
        return rows


class Scales(nn.Module):
    """One parameter: some rank owns nothing, or a part of it."""

    def __init__(self, size):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(size, dtype=torch.float64))

    def forward(self, rows):
        """(rows, size) to (rows, size)."""
        return rows * self.scale


specimen = functools.partial(Specimen, seed=7)
deep, biased, fork = (functools.partial(seeded, kind, 7) for kind in (Deep, Biased, Fork))
two, seven = (functools.partial(seeded, functools.partial(Scales, n), 7) for n in (2, 7))


def forked(world, steps):
    """Rows for Fork: rank by rank in turn narrow and wide, and the other way in the next step.

    In the last step all are narrow: no rank uses the wide layer.
    """

    def rows(s, rank):
        is_wide = (rank + s) % 2 and s < steps - 1
        return batch(6 if is_wide else 3, 2, seed=100 * s + rank)

    return [[[rows(s, rank) for rank in range(world)]] for s in range(steps)]
