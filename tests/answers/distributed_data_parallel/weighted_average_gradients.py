"""Answers to ``weighted_average_gradients`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from torch import nn


def total_of(num_samples):
    total = torch.tensor(num_samples)
    dist.all_reduce(total)
    return total.item()


def trainable(model):
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            yield p


# %% sum_first_divide_last: pass


def weighted_average_gradients(model, num_samples):
    for p in trainable(model):
        p.grad = p.grad * num_samples
        dist.all_reduce(p.grad)
    total = total_of(num_samples)
    for p in model.parameters():
        if p.grad is not None:
            p.grad /= total


# %% everything_at_the_same_time: pass


def weighted_average_gradients(model, num_samples):
    total = total_of(num_samples)
    handles = []
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        p.grad.mul_(num_samples).div_(total)
        handles.append(dist.all_reduce(p.grad, async_op=True))
    for handle in handles:
        handle.wait()


# %% scaled_by_the_number_of_ranks_then_averaged: pass


def weighted_average_gradients(model, num_samples):
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, num_samples)
    for p in trainable(model):
        p.grad *= num_samples * dist.get_world_size() / sum(counts)
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


# %% a_share_in_float32: pass


def weighted_average_gradients(model, num_samples):
    """A quotient of whole-number tensors."""
    total = torch.tensor(num_samples)
    dist.all_reduce(total)
    for p in trainable(model):
        p.grad *= num_samples / total
        dist.all_reduce(p.grad)


# %% five_all_gather_objects: pass

# style: unusual: every rank gathers (rows, gradients) of all as objects and adds up itself


def weighted_average_gradients(model: nn.Module, num_samples: int) -> None:
    mine = {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (num_samples, mine))
    total = sum(rows for rows, _ in everyone)
    for name, p in model.named_parameters():
        terms = [grads[name] * (rows / total) for rows, grads in everyone if rows and name in grads]
        if terms:
            p.grad = torch.stack(terms).sum(0).to(p.device)


# %% five_one_flat_message: pass

# style: all gradients and the number of rows in one float64 vector, a single all-reduce


def weighted_average_gradients(model: nn.Module, num_samples: int) -> None:
    params = [p for p in model.parameters() if p.requires_grad]
    if not params:
        return
    pieces = [
        (torch.zeros_like(p) if p.grad is None else p.grad).detach().reshape(-1).double()
        * num_samples
        for p in params
    ]
    pieces.append(torch.tensor([num_samples], dtype=torch.float64, device=params[0].device))
    flat = torch.cat(pieces)
    dist.all_reduce(flat)
    flat /= flat[-1].clone()
    start = 0
    for p in params:
        p.grad = flat[start : start + p.numel()].view_as(p).to(p.dtype)
        start += p.numel()


# %% five_scale_sum_divide: pass

# style: plain loop: weight by rows, sum over ranks, divide by the total number of rows


def weighted_average_gradients(model: nn.Module, num_samples: int) -> None:
    device = next(model.parameters()).device
    total = torch.tensor(num_samples, dtype=torch.int64, device=device)
    dist.all_reduce(total)
    total = total.item()
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= num_samples
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        parameter.grad /= total


# %% five_share_first_async: pass

# style: scales by this rank's share of the rows first, then asynchronous all-reduces on copies


@torch.no_grad()
def weighted_average_gradients(model: nn.Module, num_samples: int) -> None:
    params = [p for p in model.parameters() if p.requires_grad]
    if not params:
        return
    count = torch.tensor([float(num_samples)], dtype=torch.float64, device=params[0].device)
    dist.all_reduce(count)
    share = num_samples / count.item()
    pending = []
    for p in params:
        buffer = torch.zeros_like(p, memory_format=torch.contiguous_format)
        if p.grad is not None:
            buffer.copy_(p.grad).mul_(share)
        pending.append((p, buffer, dist.all_reduce(buffer, async_op=True)))
    for p, buffer, work in pending:
        work.wait()
        p.grad = buffer


# %% travels_as_float32: wrong rounded


def weighted_average_gradients(model, num_samples):
    total = total_of(num_samples)
    for p in trainable(model):
        arrived = (p.grad * num_samples).float()
        dist.all_reduce(arrived)
        p.grad = arrived.to(p.grad.dtype) / total


# %% the_shares_the_wrong_way_round: wrong wrong_values


def weighted_average_gradients(model, num_samples):
    total = total_of(num_samples)
    for p in trainable(model):
        p.grad *= 1 - num_samples / total
        dist.all_reduce(p.grad)
