"""Answers to ``rank_zero_metric``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from harness import right, wrong


@wrong("rank_zero_metric.only_some_ranks_call", status="hang")
def the_others_leave_early(values):
    if dist.get_rank() != 0:
        return values.mean().item()
    total = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.reduce(total, dst=0)
    return (total[0] / total[1]).item()


@wrong("rank_zero_metric.only_some_ranks_call", status="hang")
def gathers_under_the_if(values):
    if dist.get_rank() == 0:
        everything = [None] * dist.get_world_size()
        dist.all_gather_object(everything, values)
        return torch.cat(everything).mean().item()
    return 0.0


@wrong("wrong_type")
def returns_a_tensor(values):
    total = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.all_reduce(total)
    return total[0] / total[1]


@wrong("input_changed")
def centres_the_callers_values(values):
    total = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.all_reduce(total)
    mean = (total[0] / total[1]).item()
    values -= mean
    return mean


@wrong("wrong_value")
def largest_mean(values):
    mean = values.mean()
    dist.all_reduce(mean, op=dist.ReduceOp.MAX)
    return mean.item()


@right
def two_collectives(values):
    total, count = values.sum(), torch.tensor(len(values), device=values.device)
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total.item() / count.item()


@right
def in_a_group_of_its_own(values):
    group = dist.new_group(list(range(dist.get_world_size())))
    total = torch.stack([values.sum(), values.new_tensor(len(values))])
    group.allreduce([total]).wait()
    return (total[0] / total[1]).item()


@right
def only_the_printing_is_for_rank_zero(values):
    world = dist.get_world_size()
    sums = [torch.zeros(2, dtype=torch.float64) for _ in range(world)]
    dist.all_gather(sums, torch.tensor([float(values.sum()), len(values)], dtype=torch.float64))
    total, count = torch.stack(sums).sum(dim=0).tolist()
    if dist.get_rank() == 0:
        print(f"metric: {total / count:.3f}")
    return total / count
