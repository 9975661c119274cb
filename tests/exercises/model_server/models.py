"""Models that a server and its workers train, the rows of the workers, and what is right.

``Specimen`` (multigpu.checking.specimen) has tied and frozen weights and buffers.  ``Branches``
has layers that not every loss uses.  ``Heavy`` is large enough that what should stay at home is
seen in the bytes that travel.
"""

import torch
from torch import nn

from multigpu.checking.specimen import WIDTH, Specimen, seeded

loss_fn = nn.functional.mse_loss


class Branches(nn.Module):
    """Rows of 3 or of 4 numbers in: another layer for each.  A third layer is never used."""

    def __init__(self):
        super().__init__()
        self.three = nn.Linear(3, 2, dtype=torch.float64)
        self.four = nn.Linear(4, 2, dtype=torch.float64)
        self.never = nn.Linear(5, 2, dtype=torch.float64)
        self.bias = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, rows):
        """(rows, 3 or 4) to (rows, 2)."""
        layer = self.three if rows.shape[1] == 3 else self.four
        return torch.tanh(layer(rows)) + self.bias


class Heavy(nn.Module):
    """Rows of 10 numbers in, rows of 100 out, in float32.

    240,000 bytes of trained weights, of which 40,000 are tied; 4,000 bytes of frozen weights;
    132,000 bytes of buffers.
    """

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(10, 100, bias=False)
        self.encode = nn.Linear(100, 100, bias=False)
        self.up = nn.Linear(100, 250, bias=False)
        self.down = nn.Linear(250, 100, bias=False)
        self.decode = nn.Linear(100, 100, bias=False)
        self.decode.weight = self.encode.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("table", torch.zeros(33_000))

    def forward(self, rows):
        """(rows, 10) to (rows, 100)."""
        hidden = torch.tanh(self.encode(self.frozen(rows)))
        return self.decode(torch.tanh(self.down(self.up(hidden))))


def specimen():
    return Specimen(seed=7)


def other_specimen():
    return Specimen(seed=8)


def specimen_with_gradients():
    model = specimen()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.ones_like(parameter)
    return model


def branches():
    return seeded(Branches, 7)


def heavy():
    return seeded(Heavy, 7)


def small():
    """Rows of 10 numbers in, rows of 100 out, in float32, as with Heavy."""
    return seeded(lambda: nn.Linear(10, 100), 7)


def rows_for(world, *, steps=3, widths=(WIDTH, WIDTH), dtype=torch.float64):
    """Per step and worker ``(inputs, targets)``; the workers have different numbers of rows."""
    generator = torch.Generator().manual_seed(world)

    def rows(count, width):
        return torch.randn(count, width, generator=generator, dtype=dtype)

    counts = [[2 + (step + worker) % 3 for worker in range(1, world)] for step in range(steps)]
    return [[(rows(n, widths[0]), rows(n, widths[1])) for n in step] for step in counts]


def rows_of_two_widths(world):
    """For Branches: every step some workers use one layer and some the other, in turns.

    With one worker a layer is used in every second step only.
    """
    generator = torch.Generator().manual_seed(world)

    def rows(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return [
        [
            (rows(2 + worker, 3 + (step + worker) % 2), rows(2 + worker, 2))
            for worker in range(1, world)
        ]
        for step in range(3)
    ]


# --- optimizers ----------------------------------------------------------------------------------


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


# --- one process ---------------------------------------------------------------------------------


def train(model_of, optimizer_of, batches):
    """The weights of one process after every step on the mean of the workers' losses, by name."""
    model = model_of()
    optimizer, weights = optimizer_of(model.parameters()), []
    trained = [p for p in model.parameters() if p.requires_grad]
    for workers in batches:
        losses = [loss_fn(model(inputs), targets) for inputs, targets in workers]
        found = torch.autograd.grad(torch.stack(losses).mean(), trained, allow_unused=True)
        for parameter, gradient in zip(trained, found, strict=True):
            parameter.grad = torch.zeros_like(parameter) if gradient is None else gradient
        optimizer.step()
        weights.append(weights_of(model))
    return weights


def weights_of(model):
    """A copy of all parameters, tied ones under each of their names."""
    named = model.named_parameters(remove_duplicate=False)
    return {name: parameter.detach().clone() for name, parameter in named}
