"""Training with a learner's Zero3: cases, what a rank does and notes, and what one process gives.

What a rank holds is counted in elements that are alive, wherever they are referenced: weights,
gradients and activations together, from the beginning of a step on.
"""

import functools
import gc
import time
import warnings
from typing import Any

import torch
from torch.nn.functional import mse_loss
from torch.utils._python_dispatch import _disable_current_modes

from multigpu.checking.declaration import case
from multigpu.ranks import rank_device
from multigpu.ranks.errors import counted

from .holdings import capacity, metered, storages
from .zero3_models import bare, deep, rows_for, steps_for, words

RATE, MOMENTUM = 0.02, 0.9


def cases():
    """First few ways to cut: a mistake shows in the same numbers, however layers are cut."""
    for world, models in {3: (bare, deep, words), 2: (bare,), 4: (words,), 1: (words,)}.items():
        yield from (a_case(world, model_of) for model_of in models)


def a_case(world, model_of):
    """``shards``: each parameter's ⌈elements/n⌉.  ``two``: the two largest layers, filled up, and
    those that have layers inside.  ``around``: twice what the module itself keeps in forward.
    """
    model, filled, inside = model_of(0), [], 0
    for part in model.modules():
        own = [-(-p.numel() // world) * world for p in part.parameters(recurse=False)]
        if own:
            filled.append(sum(own))
            inside += sum(own) if len(list(part.parameters())) > len(own) else 0
    two = sum(sorted(filled)[-2:]) + inside
    shards = sum(-(-p.numel() // world) for p in model.parameters())
    around = activations(model_of)
    return case(
        f"{counted(len(filled), 'layer')} on {counted(world, 'rank')}",
        world=world,
        model_of=model_of,
        steps=2 if model_of is deep else 3,  # it is there for what is held
        layers=len(filled),
        total=sum(filled),
        shards=shards,
        two=two,
        at_rest=shards + two,
        in_forward=two + around,
        in_backward=shards + 3 * two + around,
        example=model_of is deep and world == 3,
    )


def steps_of(case):
    """Rows by step and rank, and those to evaluate by rank."""
    evaluation = [rows_for(case.model_of, 900 + rank) for rank in range(case.world)]
    return steps_for(case.model_of, case.world, case.steps), evaluation


@functools.cache
def activations(model_of):
    """Twice what autograd keeps of a forward besides the weights, for what a wrapper adds to it."""
    model, saved = model_of(0), []
    inputs, named, _ = rows_for(model_of, 0)
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda packed: packed):
        model(*inputs, **named)
    weights = storages(model.parameters())
    return 2 * sum(capacity(t) for key, t in storages(saved).items() if key not in weights)


# --- what a rank does ----------------------------------------------------------------------------


def train(submission, case, rank):
    """All steps, and forward in eval mode after the first and after the last."""
    gc.freeze()  # what is there already need not be looked through each time
    # PyTorch says so of the first layer, whose inputs need no gradient. That is not a mistake here.
    warnings.filterwarnings("ignore", "Full backward hook is firing when gradients")
    steps, evaluation = steps_of(case)
    with metered() as meter:
        of_each_step = ("steps", "forward", "backward", "evaluation", "missing")
        seen: dict[str, Any] = {what: [] for what in of_each_step}
        came = {"watched": seen}
        before = meter.begin()
        model = submission.Zero3(case.model_of(rank).to(rank_device()))
        seen["at_rest"] = meter.now() - before
        shards = list(model.parameters())
        tensors = [p for p in shards if isinstance(p, torch.Tensor)]
        others = [type(p).__name__ for p in shards if not isinstance(p, torch.Tensor)]
        seen["shards"] = len(tensors), sum(p.numel() for p in tensors), others
        if not tensors or others:
            return came
        optimizer = torch.optim.SGD(shards, RATE, momentum=MOMENTUM)
        for number, ranks in enumerate(steps):
            inputs, named, targets = on_device(ranks[rank])
            optimizer.zero_grad()
            base = meter.begin(at_most=case.in_forward)
            began = time.monotonic()
            outputs = model(*inputs, **named)
            came[f"step {number + 1}: the output"] = copied(outputs)
            seen["forward"].append([meter.highest() - base, meter.now() - base])
            if not isinstance(outputs, torch.Tensor):
                return came
            meter.begin(at_most=case.in_backward)
            loss = mse_loss(outputs, targets)
            del outputs
            loss.backward()
            del loss
            seen["steps"].append((began, time.monotonic()))
            seen["backward"].append([meter.highest() - base, meter.now() - base])
            seen["missing"].append(sum(p.grad is None and p.numel() > 0 for p in shards))
            optimizer.step()
            if number in (0, len(steps) - 1):
                inputs, named, _ = on_device(evaluation[rank])
                model.eval()
                base = meter.begin(at_most=case.in_forward)
                with torch.no_grad():
                    outputs = model(*inputs, **named)
                came[f"after step {number + 1}: the output in eval mode"] = copied(outputs)
                seen["evaluation"].append([meter.highest() - base, meter.now() - base])
                del outputs
                model.train()
    if case.model_of is bare:
        train_unmetered(submission, case, rank)
    return came


def train_unmetered(submission, case, rank):
    """A step without the meter: below its modes PyTorch allows changes of views that it refuses
    otherwise, and what fails then fails here.
    """
    model = submission.Zero3(case.model_of(rank).to(rank_device()))
    inputs, named, targets = on_device(steps_of(case)[0][0][rank])
    mse_loss(model(*inputs, **named), targets).backward()


def on_device(rows):
    inputs, named, targets = rows
    device = rank_device()
    moved = {name: tensor.to(device) for name, tensor in named.items()}
    return [tensor.to(device) for tensor in inputs], moved, targets.to(device)


def copied(value):
    """A copy that does not count as the learner's memory; other objects stay as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    with _disable_current_modes():
        return value.detach().clone()


# --- what one process does -----------------------------------------------------------------------


@functools.cache
def expected(case):
    """Rank 0's model, trained on the rows of all ranks."""
    steps, evaluation = steps_of(case)
    model = case.model_of(0)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=MOMENTUM)
    came = [{} for _ in range(case.world)]
    for number, ranks in enumerate(steps):
        optimizer.zero_grad()
        for own, (inputs, named, targets) in zip(came, ranks, strict=True):
            outputs = model(*inputs, **named)
            own[f"step {number + 1}: the output"] = outputs.detach()
            (mse_loss(outputs, targets) / case.world).backward()
        optimizer.step()
        if number in (0, len(steps) - 1):
            model.eval()
            for own, (inputs, named, _) in zip(came, evaluation, strict=True):
                with torch.no_grad():
                    outputs = model(*inputs, **named)
                own[f"after step {number + 1}: the output in eval mode"] = outputs
            model.train()
    return came
