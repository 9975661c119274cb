"""Answers to ``sum_gradients`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
from collections import defaultdict
from collections.abc import Sequence
from torch import nn

# %% by_name: pass


def sum_gradients(replicas):
    main, *others = replicas
    for name, parameter in main.named_parameters():
        for other in others:
            grad = other.get_parameter(name).grad
            if grad is not None:
                grad = grad.to(parameter.device)
                parameter.grad = grad if parameter.grad is None else parameter.grad.add(grad)


# %% through_the_cpu_and_clears_the_others: pass


def sum_gradients(replicas):
    for same in zip(*(replica.parameters() for replica in replicas)):
        total = None
        for p in same:
            if p.grad is not None:
                total = p.grad.cpu() if total is None else total + p.grad.cpu()
            p.grad = None
        if total is not None:
            same[0].grad = total.to(same[0].device)


# %% a_tree_of_pairs: pass


def sum_gradients(replicas):
    step = 1
    while step < len(replicas):
        for i in range(0, len(replicas) - step, 2 * step):
            for mine, other in zip(replicas[i].parameters(), replicas[i + step].parameters()):
                if other.grad is not None:
                    arrived = other.grad.to(mine.device)
                    mine.grad = arrived if mine.grad is None else mine.grad + arrived
        step *= 2


# %% one_by_name_in_place: pass

# right: by name, in place into the first gradient, cloning where it is missing


def sum_gradients(replicas):
    target = dict(replicas[0].named_parameters())
    with torch.no_grad():
        for replica in replicas[1:]:
            for name, param in replica.named_parameters():
                if param.grad is None:
                    continue
                mine = target[name]
                moved = param.grad.to(mine.device)
                if mine.grad is None:
                    mine.grad = moved.clone()
                else:
                    mine.grad.add_(moved)


# %% one_zip_params: pass

# right: zip over the parameter lists, add up out of place, assign once


@torch.no_grad()
def sum_gradients(replicas):
    for params in zip(*(replica.parameters() for replica in replicas)):
        first = params[0]
        total = None
        for p in params:
            if p.grad is None:
                continue
            grad = p.grad.to(first.device)
            total = grad if total is None else total + grad
        first.grad = total


# %% two_bucket: pass

# right: one flat bucket per replica and dtype, zeros for missing gradients, one addition per replica


def sum_gradients(replicas: Sequence[nn.Module]) -> None:
    columns = list(zip(*(replica.parameters() for replica in replicas), strict=True))
    groups = defaultdict(list)
    for column in columns:
        if any(parameter.grad is not None for parameter in column):
            groups[column[0].dtype].append(column)
    for group in groups.values():
        total = None
        for i in range(len(replicas)):
            flat = torch.cat(
                [
                    (torch.zeros_like(c[i]) if c[i].grad is None else c[i].grad)
                    .detach()
                    .reshape(-1)
                    for c in group
                ]
            )
            total = flat if total is None else total + flat.to(total.device)
        pieces = total.split([column[0].numel() for column in group])
        for column, piece in zip(group, pieces):
            column[0].grad = piece.view(column[0].shape).clone()


# %% two_leaf_backward: pass

# right: let autograd accumulate: backward on a leaf with a given gradient adds this to its .grad


def sum_gradients(replicas: Sequence[nn.Module]) -> None:
    first = replicas[0]
    for replica in replicas[1:]:
        leaves, gradients = [], []
        for target, source in zip(first.parameters(), replica.parameters()):
            if source.grad is not None:
                leaves.append(target)
                gradients.append(source.grad.detach().to(target.device, copy=True))
        if leaves:
            torch.autograd.backward(leaves, gradients)


# %% two_stack_by_name: pass

# right: look parameters up by name and sum a stack of all gradients that are there


def sum_gradients(replicas: Sequence[nn.Module]) -> None:
    for name, parameter in replicas[0].named_parameters():
        gradients = [
            grad.detach().to(parameter.device)
            for replica in replicas
            if (grad := replica.get_parameter(name).grad) is not None
        ]
        parameter.grad = torch.stack(gradients).sum(dim=0) if gradients else None


# %% adds_up_absolute_values: wrong wrong_values


def sum_gradients(replicas):
    for same in zip(*(replica.parameters() for replica in replicas)):
        present = [p.grad.to(same[0].device).abs() for p in same if p.grad is not None]
        if present:
            same[0].grad = sum(present)


# %% deletes_a_parameter: wrong missing


def sum_gradients(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            if other.grad is not None:
                arrived = other.grad.to(first.device)
                first.grad = arrived if first.grad is None else first.grad + arrived
    for module in replicas[0].modules():
        for name in list(module._parameters):
            del module._parameters[name]


# %% switches_gradients_off_for_good: wrong sum_gradients.grad_mode_changed


def sum_gradients(replicas):
    torch.set_grad_enabled(False)
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            if other.grad is not None:
                arrived = other.grad.to(first.device)
                first.grad = arrived if first.grad is None else first.grad + arrived
