"""Models in four layers, cut into as many stages as there are ranks, and their batches.

All numbers between stages are float32.  ``rows`` are the sizes of the micro-batches.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from multigpu.checking.comparing import seeded

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


def images():
    """(rows, 1, 6, 6) becomes (rows, 1, 6, 4), (rows, 1, 3, 2), (rows, 6) and (rows, 4).

    Without a convolution: the first one of a process takes a second to begin.
    """
    return [
        nn.Sequential(nn.Linear(6, 4), nn.Tanh()),
        nn.Sequential(nn.MaxPool2d(2), Residual(2)),
        nn.Sequential(nn.Flatten(), Residual(6)),
        nn.Linear(6, 4),
    ]


def sequences():
    """Tokens (rows, 5), int64, become (rows, 5, 4) twice, (rows, 5, 3) and (rows, 5, 7)."""
    return [
        nn.Embedding(TOKENS, 4),
        Residual(4),
        nn.Sequential(nn.Linear(4, 3), nn.Tanh()),
        nn.Linear(3, TOKENS),
    ]


def token_loss(scores, targets):
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def vector_rows(count, generator):
    return [torch.randn(count, width, generator=generator) for width in (5, 2)]


def image_rows(count, generator):
    pictures = torch.randn(count, 1, 6, 6, generator=generator)
    return pictures, torch.randint(4, (count,), generator=generator)


def sequence_rows(count, generator):
    return [torch.randint(TOKENS, (count, LENGTH), generator=generator) for _ in range(2)]


@dataclass(frozen=True)
class Case:
    """A model, the sizes of its micro-batches, and the schedule by which it is trained.

    Every gradient is ``before`` when ``run`` is called; None, if that is zero.
    """

    kind: str
    rows: tuple[int, ...]
    table: Any  # as gpipe and one_f_one_b make them, with one row per rank
    steps: int = 1
    before: float = 0.0

    def stages(self):
        """A new model, always the same, as one module per stage."""
        make = {"vectors": vectors, "images": images, "sequences": sequences}[self.kind]
        layers = seeded(make, 5)
        parts = torch.arange(len(layers)).tensor_split(len(self.table))
        return [nn.Sequential(*(layers[i] for i in part)) for part in parts]

    def loss_fn(self):
        return {
            "vectors": nn.MSELoss(), "images": nn.CrossEntropyLoss(), "sequences": token_loss,
        }[self.kind]  # fmt: skip

    def microbatches(self, step):
        generator = torch.Generator().manual_seed(100 * step + len(self.rows))
        make = {"vectors": vector_rows, "images": image_rows, "sequences": sequence_rows}[self.kind]
        return [tuple(make(count, generator)) for count in self.rows]
