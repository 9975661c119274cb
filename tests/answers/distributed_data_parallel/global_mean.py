"""Answers to ``global_mean`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import math
import torch
import torch.distributed as dist
from exercises.distributed_data_parallel.global_mean import added


# %% two_collectives: pass
def global_mean(values):
    total = values.sum().double()
    count = torch.tensor(values.numel())
    dist.all_reduce(total)
    dist.all_reduce(count)
    return (total / count).item()


# %% rank_zero_works_and_tells: pass
def global_mean(values):
    total = torch.tensor([values.sum().item(), values.numel()], dtype=torch.float64)
    dist.reduce(total, dst=0)
    if dist.get_rank() == 0:
        total[0] /= total[1]
    dist.broadcast(total, src=0)
    return total[0].item()


# %% in_float32_where_the_values_are: pass
def global_mean(values):
    count = torch.tensor(float(values.numel()), device=values.device)
    total = torch.stack([values.sum().float(), count])
    dist.all_reduce(total)
    return float(total[0]) / float(total[1]) if total[1] else math.nan


# %% adds_up_in_the_callers_tensor: wrong input_changed
def global_mean(values):
    total, count = added(values.sum().item(), values.numel())
    values.zero_()
    return total / count if count else math.nan


# %% the_largest_mean: wrong wrong_value
def global_mean(values):
    mean = torch.tensor(values.double().mean().item())
    dist.all_reduce(mean, op=dist.ReduceOp.MAX)
    return mean.item()
