"""Trains with a learner's sharded optimizer on one rank, and notes all that a check looks at."""

import time

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

from multigpu.ranks import rank_device

from .holdings import forget_the_past
from .watching import watched


def drive(submission, name, cases):
    """Every case in one run: (make model, optimizer, options, slots, steps, rates, look).

    ``look`` is how many elements of gradients may be there when the inner optimizer makes the
    second step; None where nobody asks what else is there.
    """
    return [train(getattr(submission, name), *case) for case in cases]


def train(make, model_of, kind_name, options, slots, steps, rates, look):
    """One rank's training.  ``rates[s]`` is the learning rate from step s on."""
    forget_the_past()
    kind = getattr(torch.optim, kind_name)
    model = model_of().to(rank_device())
    with watched(kind, slots, model) as watch:
        optimizer = make(model.parameters(), kind, **options)
        start = {"weights": weights_of(model), "groups": groups_of(optimizer), **watch.notes()}
        done = []
        for number, passes in enumerate(steps):
            if number in rates and "rates" in start["groups"]:
                for group in optimizer.param_groups:
                    group["lr"] = rates[number]
            done.append(one_step(model, optimizer, passes, watch, look if number == 1 else None))
    return {"start": start, "steps": done}


def one_step(model, optimizer, passes, watch, look):
    """Every pass adds to the gradients of the one before; then comes one step."""
    times = [time.monotonic()]
    optimizer.zero_grad()
    left = [n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()]
    for ranks in passes:
        inputs, targets = (tensor.to(rank_device()) for tensor in ranks[dist.get_rank()])
        mse_loss(model(inputs), targets).backward()
    del inputs, targets
    watch.new_step(look_at=look)
    optimizer.step()
    times.append(time.monotonic())
    watch.note_state("end")
    return {"left": left, "times": times, "weights": weights_of(model), **watch.notes()}


def weights_of(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def groups_of(optimizer):
    """What ``param_groups`` is, in plain words and numbers."""
    try:
        groups = optimizer.param_groups
    except AttributeError as error:
        return {"problem": str(error)}
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        return {"problem": f"it is {type(groups).__name__}"}
    return {
        "rates": [group.get("lr") for group in groups],
        "missing": sorted({"params", "lr"}.difference(*groups)) if groups else [],
    }
