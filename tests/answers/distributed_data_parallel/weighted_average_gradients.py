"""Answers to ``weighted_average_gradients`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from exercises.distributed_data_parallel.given_gradients import all_rows, trained


# %% sum_first_divide_last: pass
def weighted_average_gradients(model, num_samples):
    for p in trained(model):
        p.grad = p.grad * num_samples
        dist.all_reduce(p.grad)
    total = all_rows(num_samples)
    for p in model.parameters():
        if p.grad is not None:
            p.grad /= total


# %% everything_at_the_same_time: pass
def weighted_average_gradients(model, num_samples):
    total = all_rows(num_samples)
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
    for p in trained(model):
        p.grad *= num_samples * dist.get_world_size() / sum(counts)
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


# %% a_share_in_float32: pass
def weighted_average_gradients(model, num_samples):
    """A quotient of whole-number tensors."""
    total = torch.tensor(num_samples)
    dist.all_reduce(total)
    for p in trained(model):
        p.grad *= num_samples / total
        dist.all_reduce(p.grad)


# %% five_all_gather_objects: pass
# style: unusual: every rank gathers (rows, gradients) of all as objects and adds up itself


def weighted_average_gradients(model, num_samples):
    mine = {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (num_samples, mine))
    total = sum(rows for rows, _ in everyone)
    for name, p in model.named_parameters():
        terms = [grads[name] * (rows / total) for rows, grads in everyone if rows and name in grads]
        if terms:
            p.grad = torch.stack(terms).sum(0).to(p.device)


# %% the_shares_the_wrong_way_round: wrong wrong_values
def weighted_average_gradients(model, num_samples):
    total = all_rows(num_samples)
    for p in trained(model):
        p.grad *= 1 - num_samples / total
        dist.all_reduce(p.grad)
