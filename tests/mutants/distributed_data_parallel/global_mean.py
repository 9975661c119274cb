"""Answers to ``global_mean``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import math

import torch
import torch.distributed as dist
from harness import right, wrong


def added(*numbers):
    tensor = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(tensor)
    return tensor.tolist()


@wrong("returned_nothing")
def prints_it(values):
    total, count = added(values.sum().item(), values.numel())
    print(total / count)


@wrong("input_changed")
def adds_up_in_the_callers_tensor(values):
    total, count = added(values.sum().item(), values.numel())
    values.zero_()
    return total / count if count else math.nan


@wrong("wrong_value")
def the_largest_mean(values):
    mean = torch.tensor(values.double().mean().item())
    dist.all_reduce(mean, op=dist.ReduceOp.MAX)
    return mean.item()


@right
def two_collectives(values):
    total = values.sum().double()
    count = torch.tensor(values.numel())
    dist.all_reduce(total)
    dist.all_reduce(count)
    return (total / count).item()


@right
def gathers_tensors_as_objects(values):
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, values)
    return torch.cat([v.reshape(-1) for v in everything]).to(torch.float64).mean().item()


@right
def rank_zero_works_and_tells(values):
    total = torch.tensor([values.sum().item(), values.numel()], dtype=torch.float64)
    dist.reduce(total, dst=0)
    if dist.get_rank() == 0:
        total[0] /= total[1]
    dist.broadcast(total, src=0)
    return total[0].item()


@right
def in_float32_where_the_values_are(values):
    count = torch.tensor(float(values.numel()), device=values.device)
    total = torch.stack([values.sum().float(), count])
    dist.all_reduce(total)
    return float(total[0]) / float(total[1]) if total[1] else math.nan


@wrong("global_mean.summed_in_own_dtype")
def whole_numbers_in_float64_and_others_as_they_are(values):
    dtype = values.dtype if values.is_floating_point() else torch.float64
    total = values.sum(dtype=dtype)
    count = torch.tensor(values.numel(), dtype=dtype)
    dist.all_reduce(total)
    dist.all_reduce(count)
    return (total / count).item()


@wrong("global_mean.summed_in_own_dtype")
def in_bfloat16_and_float32(values):
    dtype = torch.bfloat16 if values.dtype == torch.bfloat16 else torch.float32
    total = torch.stack([values.sum().to(dtype), torch.tensor(values.numel()).to(dtype)])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


@wrong("global_mean.summed_in_own_dtype")
def in_the_type_of_the_values(values):
    total = values.sum(dtype=values.dtype)
    count = torch.tensor(values.numel(), dtype=values.dtype)
    dist.all_reduce(total)
    dist.all_reduce(count)
    return (total / count).item()
