"""What a team of ranks computes, rightly and by known mistakes, in one process.

The judge trains with it: ``weights[step][rank]`` are all weights in one vector, before the first
step and after each one; ``losses[step][rank]`` is the loss of a rank's batch before that step.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from multigpu.checking.comparing import seeded

LEARNING_RATE, MOMENTUM = 0.2, 0.9
COLUMNS, OUTPUTS, ROWS = 3, 2, 4
# What weights look like that are only rounded, and why.
ROUNDED = (
    "training with rounded averages",
    "gradients were sent or added up in a smaller dtype. Reduce them as they are.",
)


def model():
    """A new model that is the same each time.  Without bias: small inputs give small outputs."""
    return seeded(layers, 11).double()


def layers():
    """(rows, COLUMNS) to (rows, OUTPUTS)."""
    first, last = nn.Linear(COLUMNS, 4, bias=False), nn.Linear(4, OUTPUTS, bias=False)
    return nn.Sequential(first, nn.Tanh(), last)


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


@dataclass(frozen=True)
class Training:
    """A whole training: see above."""

    weights: list
    losses: list

    @property
    def ends(self):
        """The weights of each rank at the end."""
        return self.weights[-1]


def train(batches, rule):
    """Train a team.  ``batches`` are those of each rank.

    ``rule(parts, left)`` makes the gradients with which the ranks step.  ``parts`` are their own
    ones, ``left`` those of the step before; None where there is none.  A rank that gets None does
    not step; when the rule gives nothing at all, training is over.
    """
    start = parameters_to_vector(model().parameters()).detach()
    weights = [[start] * len(batches)]
    momenta, left = [torch.zeros_like(start)] * len(batches), [None] * len(batches)
    losses = []
    for step in range(max(map(len, batches))):
        here = [batch[step] if step < len(batch) else None for batch in batches]
        pairs = [gradient(w, batch) for w, batch in zip(weights[-1], here, strict=True)]
        left = rule([part for part, _ in pairs], left)
        if left is None:
            break
        momenta = [m if g is None else MOMENTUM * m + g for m, g in zip(momenta, left, strict=True)]
        weights.append(
            [
                w if g is None else w - LEARNING_RATE * m
                for w, m, g in zip(weights[-1], momenta, left, strict=True)
            ]
        )
        losses.append([loss for _, loss in pairs])
    return Training(weights, losses)


def gradient(weights, batch):
    """The gradient of one batch in one vector, and its loss."""
    if batch is None:
        return None, None
    net = model()
    vector_to_parameters(weights.clone(), net.parameters())
    loss = nn.functional.mse_loss(net(batch[0]), batch[1])
    loss.backward()
    return parameters_to_vector([p.grad for p in net.parameters()]), loss.item()


def present(parts):
    return [part for part in parts if part is not None]


def over_all(parts, left):
    return [sum(present(parts)) / len(parts)] * len(parts)


def over_present(parts, left):
    return [sum(present(parts)) / len(present(parts))] * len(parts)


def summed(parts, left):
    return [sum(present(parts))] * len(parts)


def own(parts, left):
    return parts


def until_one_is_missing(parts, left):
    return over_all(parts, left) if len(present(parts)) == len(parts) else None


def alone_when_one_is_missing(parts, left):
    return until_one_is_missing(parts, left) or parts


def idle_ranks_do_not_step(parts, left, rule=over_all):
    return [
        mean if part is not None else None
        for part, mean in zip(parts, rule(parts, left), strict=True)
    ]


def idle_ranks_do_not_step_over_present(parts, left):
    return idle_ranks_do_not_step(parts, left, over_present)


def old_gradient_again(parts, left):
    return over_all(
        [new if new is not None else old for new, old in zip(parts, left, strict=True)], left
    )


def never_cleared(parts, left):
    both = [present(pair) for pair in zip(parts, left, strict=True)]
    return over_all([sum(two) if two else None for two in both], left)


def of_rank_zero(parts, left):
    return [parts[0]] * len(parts)
