"""Answers to ``rank_zero_metric``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from harness import right, wrong


@wrong("rank_zero_metric.only_some_ranks_call", status="hang")
def as_it_was_handed_out(values):
    total = torch.stack([values.sum(), values.new_tensor(len(values))])
    if dist.get_rank() == 0:
        dist.all_reduce(total)
    return (total[0] / total[1]).item()


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


@wrong("rank_zero_metric.only_rank_zero_knows")
def reduces_to_rank_zero(values):
    total = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.reduce(total, dst=0)
    if dist.get_rank() == 0:
        return (total[0] / total[1]).item()
    return values.mean().item()


@wrong("rank_zero_metric.returned_nothing")
def the_others_get_none(values):
    total = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        return (total[0] / total[1]).item()


@wrong("rank_zero_metric.mean_of_means")
def averages_the_means(values):
    mean = values.mean()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


@wrong("rank_zero_metric.own_mean")
def takes_the_collective_away(values):
    return values.mean().item()


@wrong("rank_zero_metric.rank_zeros_mean")
def broadcasts_rank_zeros_mean(values):
    mean = values.mean()
    dist.broadcast(mean, src=0)
    return mean.item()


@wrong("rank_zero_metric.only_added")
def never_divides(values):
    total = values.sum()
    dist.all_reduce(total)
    return total.item()


@wrong("rank_zero_metric.divided_by_ranks")
def divides_by_ranks(values):
    total = values.sum()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


@wrong("rank_zero_metric.divided_by_own_count")
def divides_by_its_own_count(values):
    total = values.sum()
    dist.all_reduce(total)
    return total.item() / len(values)


@wrong("rank_zero_metric.means_added")
def adds_the_means(values):
    mean = values.mean()
    dist.all_reduce(mean)
    return mean.item()


@wrong("rank_zero_metric.not_a_float")
def returns_a_tensor(values):
    total = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.all_reduce(total)
    return total[0] / total[1]


@wrong("rank_zero_metric.values_changed")
def centres_the_callers_values(values):
    total = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.all_reduce(total)
    mean = (total[0] / total[1]).item()
    values -= mean
    return mean


@wrong("rank_zero_metric.other_value")
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
def gathers_everything(values):
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, values.tolist())
    flat = [value for own in everything for value in own]
    return sum(flat) / len(flat)


@right
def rank_zero_works_and_tells(values):
    total = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.reduce(total, dst=0)
    mean = total[0] / total[1]
    dist.broadcast(mean, src=0)
    return float(mean)


@right
def only_the_printing_is_for_rank_zero(values):
    world = dist.get_world_size()
    sums = [torch.zeros(2, dtype=torch.float64) for _ in range(world)]
    dist.all_gather(sums, torch.tensor([float(values.sum()), len(values)], dtype=torch.float64))
    total, count = torch.stack(sums).sum(dim=0).tolist()
    if dist.get_rank() == 0:
        print(f"metric: {total / count:.3f}")
    return total / count
