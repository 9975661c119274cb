"""Training with other numbers of rows on every rank: what one process computes, in the judge."""

import copy
from dataclasses import dataclass

import torch
from torch.nn.functional import mse_loss

LEARNING_RATE, MOMENTUM = 0.1, 0.9


@dataclass(frozen=True)
class Step:
    """One step: what each rank has computed, and what the whole batch gives.

    ``parts[name][rank]`` is the gradient of the rank's own mean loss, None where it did not use
    the parameter or has no rows; ``whole[name]`` that of the mean over all rows, None where nobody
    used it; ``before`` are the weights during this step.
    """

    counts: list[int]
    parts: dict[str, list[torch.Tensor | None]]
    whole: dict[str, torch.Tensor | None]
    before: dict[str, torch.Tensor]


def train(model, steps):
    """Train a copy of ``model``.  ``steps[s][rank]`` are inputs and targets, perhaps of no row."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, momentum=MOMENTUM)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    done = []
    for batches in steps:
        counts = [len(inputs) for inputs, _ in batches]
        by_rank = [own_gradients(model, trained, *batch) for batch in batches]
        parts = {name: [own[name] for own in by_rank] for name in trained}
        whole = {name: weighted(own, counts) for name, own in parts.items()}
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        done.append(Step(counts, parts, whole, before))
        for name, parameter in trained.items():
            parameter.grad = whole[name]
        optimizer.step()
    return done


def own_gradients(model, trained, inputs, targets):
    if not len(inputs):
        return dict.fromkeys(trained)
    loss = mse_loss(model(inputs), targets)
    gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    return dict(zip(trained, gradients, strict=True))


def weighted(parts, counts):
    """The gradient of the mean over all rows."""
    return added(
        None if part is None else part * (count / sum(counts))
        for part, count in zip(parts, counts, strict=True)
    )


def added(parts):
    there = [part for part in parts if part is not None]
    return sum(there) if there else None


def mistaken(step, name, rank):
    """By mistake: what ``rank`` has instead of the whole batch's gradient."""
    parts, counts, whole = step.parts[name], step.counts, step.whole[name]
    busy = [count for count in counts if count]
    own = torch.zeros_like(whole) if parts[rank] is None else parts[rank]
    total = sum(counts)
    known = {
        "ranks_count_equally": added(parts) / len(counts),
        "ranks_count_equally of those with rows": added(parts) / len(busy),
        "only_added": added(parts),
        "weighted_but_not_divided": whole * total,
        "divided_by_ranks": whole * total / len(counts),
        "divided_twice": whole / total,
        "divided_twice by ranks": whole / len(counts),
        "own_gradient": own,
        "only_weighted": own * (counts[rank] / total),
    }
    if counts[rank]:
        known["divided_by_own_rows"] = whole * total / counts[rank]
    return known
