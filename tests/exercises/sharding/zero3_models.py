"""Models and rows for Zero3.  They travel into the ranks."""

import itertools
from typing import Any

import torch
from torch import nn

DOUBLE: dict[str, Any] = {"dtype": torch.float64}


class Halved(nn.Module):
    """Halves while it trains, and passes on in eval mode: as Dropout does, but without chance."""

    def forward(self, rows):
        return rows / 2 if self.training else rows


class Bare(nn.Module):
    """Two layers with one parameter each: there is one way to cut them."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 7, bias=False, **DOUBLE)
        self.last = nn.Linear(7, 1, bias=False, **DOUBLE)
        self.halved = Halved()

    def forward(self, rows):
        return self.last(torch.tanh(self.halved(self.first(rows))))


class Deep(nn.Module):
    """Twelve layers of nearly one size, some inside others, and three small ones.

    There are so many that two of them, with their gradients twice, are much less than all.
    """

    def __init__(self):
        super().__init__()
        widths = (5, 61, 63, 60, 62, 61, 63, 60, 62, 64, 59, 63, 61)
        layers = [
            nn.Sequential(nn.Linear(*each, **DOUBLE), nn.Tanh())
            for each in itertools.pairwise(widths)
        ]
        self.first = nn.Sequential(*layers[:8], nn.LayerNorm(62, **DOUBLE), Halved())
        self.others = nn.ModuleList(layers[8:])
        self.last = nn.Linear(61, 1, bias=False, **DOUBLE)

    def forward(self, rows):
        rows = self.first(rows)
        for layer in self.others:
            rows = layer(rows)
        return self.last(rows)


class Block(nn.Module):
    """A layer with layers inside: ``gain`` is its own."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width, **DOUBLE)
        self.gain = nn.Parameter(torch.empty((), **DOUBLE))
        self.mix = nn.Linear(width, width, bias=False, **DOUBLE)

    def forward(self, rows):
        return rows + self.gain * torch.tanh(self.mix(self.norm(rows)))


class Words(nn.Module):
    """Words in, one number per word out.  ``places`` belongs to the outermost module itself."""

    def __init__(self):
        super().__init__()
        self.places = nn.Parameter(torch.empty(5, 7, **DOUBLE))
        self.words = nn.Embedding(11, 7, **DOUBLE)
        self.blocks = nn.Sequential(Block(7), Block(7))
        self.head = nn.Linear(7, 1, **DOUBLE)

    def forward(self, words, *, mask):
        rows = self.words(words) + self.places[: words.shape[1]]  # (rows, length, 7)
        return self.head(self.blocks(rows)) * mask  # (rows, length, 1)


def filled(make, seed):
    """Every element another number, on every rank other ones."""
    generator = torch.Generator().manual_seed(seed)
    model = make()
    with torch.no_grad():
        for parameter in model.parameters():
            scale = max(1, parameter.shape[-1] if parameter.dim() > 1 else 4) ** -0.5
            parameter.normal_(generator=generator).mul_(scale)
    return model


def bare(rank):
    return filled(Bare, 5 + rank)


def deep(rank):
    return filled(Deep, 7 + rank)


def words(rank):
    return filled(Words, 17 + rank)


def numbers(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def rows_for(model_of, seed):
    """Inputs, inputs with a name and targets, for one rank and step."""
    if model_of is not words:
        return [numbers(2, 5, seed=seed)], {}, numbers(2, 1, seed=seed + 1000)
    generator = torch.Generator().manual_seed(seed)
    sentences = torch.randint(11, (3, 5), generator=generator)
    mask = (numbers(3, 5, 1, seed=seed + 500) > -1).double()
    return [sentences], {"mask": mask}, numbers(3, 5, 1, seed=seed + 1000)


def steps_for(model_of, world, steps):
    """``result[step][rank]``."""
    return [[rows_for(model_of, 100 * s + rank) for rank in range(world)] for s in range(steps)]
