"""What checks hand to a learner's code: models that bring out what can be lost, and their rows.

A ``Specimen`` has everything that a copy can lose; of a ``Fork`` a step uses only a part.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

WIDTH = 3
Rows = tuple[Tensor, Tensor]  # inputs and targets
Made = TypeVar("Made")


def seeded(make: Callable[[], Made], seed: int) -> Made:
    """``make()`` with random numbers of the CPU that are the same each time.

    ``torch.manual_seed`` notes for every kind of GPU, too, from where it was called, and that takes
    longer than making a small model does.
    """
    torch.default_generator.manual_seed(seed)
    return make()


class Gain(nn.Module):
    """Multiplies by one trained number, ``scale``, which has no dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        """Keeps the shape."""
        return inputs * self.scale


class Specimen(nn.Module):
    """Rows of 3 numbers in, rows of 3 numbers out, all in float64.

    * ``encode.weight`` and ``decode.weight`` are one parameter (tied);
    * ``frozen`` has no bias, is not trained and is in eval mode;
    * ``gain.scale`` has no dimension;
    * ``running_mean`` is an ordinary buffer, ``batches`` an integer one that forward counts up,
      ``position`` a non-persistent one (not in ``state_dict()``).

    Parameters and buffers depend on ``seed`` only; without one they are random.
    """

    running_mean: Tensor
    batches: Tensor
    position: Tensor

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self.encode = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.frozen = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64)
        self.decode = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.decode.weight = self.encode.weight
        self.gain = Gain()
        self.register_buffer("running_mean", torch.zeros(WIDTH, dtype=torch.float64))
        self.register_buffer("batches", torch.tensor(0))
        position = torch.zeros(WIDTH, dtype=torch.float64)
        self.register_buffer("position", position, persistent=False)
        if seed is not None:
            generator = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                for tensor in (*self.parameters(), self.running_mean, self.position):
                    tensor.normal_(generator=generator).mul_(0.5)
            self.batches.fill_(10 + seed)
        self.frozen.requires_grad_(False)
        self.frozen.eval()

    def forward(self, inputs: Tensor) -> Tensor:
        """(rows, 3) to (rows, 3).  Each row is computed by itself."""
        self.batches += 1
        hidden = torch.tanh(self.encode(self.frozen(inputs)) + self.position)  # (rows, 3)
        outputs: Tensor = self.gain(self.decode(hidden)) + self.running_mean  # (rows, 3)
        return outputs


class Fork(nn.Module):
    """A step uses one of two layers: that for the width of its rows.  ``idle`` is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(
            {
                "narrow": nn.Linear(3, 4, dtype=torch.float64),
                "wide": nn.Linear(6, 4, dtype=torch.float64),
            }
        )
        self.idle = nn.Linear(2, 2, dtype=torch.float64)
        self.head = nn.Linear(4, 2, dtype=torch.float64)

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, 3 or 6) to (rows, 2)."""
        layer = self.layers["narrow" if rows.shape[1] == 3 else "wide"]
        outputs: Tensor = self.head(torch.tanh(layer(rows)))
        return outputs


def batch(columns: int, outputs: int, *, seed: int, count: int = 4) -> Rows:
    """Random inputs and targets in float64: (count, columns) and (count, outputs)."""
    first, second = (torch.Generator().manual_seed(each) for each in (seed, seed + 1000))
    inputs = torch.randn(count, columns, generator=first, dtype=torch.float64)
    return inputs, torch.randn(count, outputs, generator=second, dtype=torch.float64)


def rows_by_step(
    world: int, steps: int, columns: int, outputs: int, *, passes: int = 1
) -> list[list[list[Rows]]]:
    """Rows for ``steps`` steps, other ones for every rank: ``result[step][pass][rank]``."""
    return [
        [
            [batch(columns, outputs, seed=100 * s + 10 * p + rank) for rank in range(world)]
            for p in range(passes)
        ]
        for s in range(steps)
    ]
