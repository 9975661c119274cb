"""Of training: a model, batches for each rank, and one process that trains as many ranks do."""

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from multigpu.checking.specimen import seeded

LEARNING_RATE, MOMENTUM = 0.2, 0.9
COLUMNS, OUTPUTS, ROWS = 3, 2, 4


def model():
    """A new model that is the same each time.  Without bias: small inputs give small outputs."""
    return seeded(layers, 11).double()


def layers():
    """(rows, COLUMNS) to (rows, OUTPUTS)."""
    first, last = nn.Linear(COLUMNS, 4, bias=False), nn.Linear(4, OUTPUTS, bias=False)
    return nn.Sequential(first, nn.Tanh(), last)


def sgd(net):
    return torch.optim.SGD(net.parameters(), LEARNING_RATE, momentum=MOMENTUM)


def weights_of(net):
    """All weights in one vector."""
    return parameters_to_vector(net.parameters()).detach().clone()


def batches_of(counts, seed=0):
    """One list of batches per rank, ``counts`` of them, all different."""
    generator = torch.Generator().manual_seed(100 * seed + sum(counts))
    return [
        [
            tuple(
                torch.randn(ROWS, width, generator=generator, dtype=torch.float64)
                for width in (COLUMNS, OUTPUTS)
            )
            for _ in range(count)
        ]
        for count in counts
    ]


def trained(batches, *, only_present=False):
    """``(weights, losses)``: the weights before the first step and after each one, the same on all
    ranks, and in each step the loss of every rank that has a batch.

    A rank without a batch counts as zero in the mean, or with ``only_present`` not at all.
    """
    net = model()
    optimizer, weights, losses = sgd(net), [weights_of(net)], []
    for step in range(max(map(len, batches))):
        here = [own[step] for own in batches if step < len(own)]
        each = [nn.functional.mse_loss(net(inputs), targets) for inputs, targets in here]
        optimizer.zero_grad()
        (sum(each) / (len(here) if only_present else len(batches))).backward()
        optimizer.step()
        weights.append(weights_of(net))
        losses.append([loss.item() for loss in each])
    return weights, losses
