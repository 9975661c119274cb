"""What one process computes on the rows of all ranks, and what known mistakes compute instead."""

import copy
from dataclasses import dataclass

import torch
from torch.nn.functional import mse_loss

LEARNING_RATE, MOMENTUM = 0.1, 0.9


@dataclass(frozen=True)
class Step:
    """One training step: gradients by parameter, and the weights after it.

    ``passes`` has, for every backward of the step, what each rank's own rows give, None where a
    rank did not use the parameter.
    """

    passes: list[dict[str, list[torch.Tensor | None]]]
    gradients: dict[str, torch.Tensor | None]
    weights: dict[str, torch.Tensor]

    def parts(self, name):
        """The gradient of one parameter as each rank has it after its last backward."""
        return [added(own) for own in zip(*(one[name] for one in self.passes), strict=True)]


def train(model, steps):
    """Train a copy of ``model`` on the rows of all ranks.

    ``steps[s][p][rank]`` are the rows (inputs, targets) of one backward: step s, pass p.
    """
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, momentum=MOMENTUM)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    done = []
    for passes in steps:
        gradients_of = [gradients(model, trained, ranks) for ranks in passes]
        step = Step(gradients_of, {}, {})
        for name, parameter in trained.items():
            parts = step.parts(name)
            total = added(parts)
            parameter.grad = None if total is None else total / len(parts)
            step.gradients[name] = parameter.grad
        optimizer.step()
        step.weights.update({n: p.detach().clone() for n, p in model.named_parameters()})
        done.append(step)
    return done


def gradients(model, trained, ranks):
    """By parameter, the gradient of each rank's mean loss over its own rows."""
    by_rank = [
        torch.autograd.grad(
            mse_loss(model(inputs), targets), list(trained.values()), allow_unused=True
        )
        for inputs, targets in ranks
    ]
    return {name: [own[i] for own in by_rank] for i, name in enumerate(trained)}


def added(tensors):
    """The sum of those that are there; None where none is."""
    there = [tensor for tensor in tensors if tensor is not None]
    return sum(there[1:], there[0]) if there else None


def mistaken(parts, rank):
    """By mistake: what ``rank`` has instead of the mean of ``parts``, of which one is there."""
    n, there = len(parts), [part for part in parts if part is not None]
    total, own = added(parts), parts[rank]
    known = {
        "summed": total,
        "divided_twice": total / n**2,
        "divided_by_users": total / len(there),
        "divided_by_2": total / 2,
    }
    if own is None:
        own = torch.zeros_like(total)
    known |= {"not_averaged": own, "only_divided": own / n}
    known |= {f"of_one_rank {j}": part for j, part in enumerate(parts) if part is not None}
    known |= {"multiplied": total * n, "not_averaged but multiplied": own * n}
    if len(there) == n:
        known["largest"] = torch.stack(there).amax(dim=0)
    return known
