"""Answers to ``rank_zero_metric`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from torch import Tensor

# %% two_collectives: pass


def rank_zero_metric(values):
    total, count = values.sum(), torch.tensor(len(values), device=values.device)
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total.item() / count.item()


# %% in_a_group_of_its_own: pass


def rank_zero_metric(values):
    group = dist.new_group(list(range(dist.get_world_size())))
    total = torch.stack([values.sum(), values.new_tensor(len(values))])
    group.allreduce([total]).wait()
    return (total[0] / total[1]).item()


# %% only_the_printing_is_for_rank_zero: pass


def rank_zero_metric(values):
    world = dist.get_world_size()
    sums = [torch.zeros(2, dtype=torch.float64) for _ in range(world)]
    dist.all_gather(sums, torch.tensor([float(values.sum()), len(values)], dtype=torch.float64))
    total, count = torch.stack(sums).sum(dim=0).tolist()
    if dist.get_rank() == 0:
        print(f"metric: {total / count:.3f}")
    return total / count


# %% five_gather_scatter_objects: pass

# style: unusual: gather_object on rank 0, then scatter_object_list of the result


def rank_zero_metric(values: Tensor) -> float:
    world = dist.get_world_size()
    first = dist.get_rank() == 0
    lists = [None] * world if first else None
    dist.gather_object(values.tolist(), lists, dst=0)
    answers = None
    if first:
        everything = [x for part in lists for x in part]
        answers = [sum(everything) / len(everything)] * world
    mine = [None]
    dist.scatter_object_list(mine, answers, src=0)
    return mine[0]


# %% five_point_to_point: pass

# style: unusual: send and recv with rank 0 as the centre


def rank_zero_metric(values: Tensor) -> float:
    mine = torch.stack(
        [values.double().sum(), values.new_tensor(values.numel(), dtype=torch.float64)]
    )
    ranks = range(1, dist.get_world_size())
    if dist.get_rank() == 0:
        part = torch.empty_like(mine)
        for rank in ranks:
            dist.recv(part, src=rank)
            mine += part
        for rank in ranks:
            dist.send(mine, dst=rank)
    else:
        dist.send(mine, dst=0)
        dist.recv(mine, src=0)
    return float(mine[0] / mine[1])


# %% five_reduce_then_broadcast: pass

# style: rank 0 computes (reduce) and tells the others (broadcast)


def rank_zero_metric(values: Tensor) -> float:
    total = torch.tensor([0.0, len(values)], dtype=torch.float64, device=values.device)
    total[0] = values.detach().double().sum()
    dist.reduce(total, dst=0)
    if dist.get_rank() == 0:
        mean = total[0] / total[1]
    else:
        mean = torch.empty((), dtype=torch.float64, device=values.device)
    dist.broadcast(mean, src=0)
    return mean.item()


# %% five_smallest_repair: pass

# style: the smallest repair: the all-reduce is taken out of the if


def rank_zero_metric(values: Tensor) -> float:
    total = torch.stack([values.sum(), values.new_tensor(len(values))])  # sum, count
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


# %% returns_a_tensor: wrong wrong_type


def rank_zero_metric(values):
    total = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.all_reduce(total)
    return total[0] / total[1]


# %% centres_the_callers_values: wrong input_changed


def rank_zero_metric(values):
    total = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.all_reduce(total)
    mean = (total[0] / total[1]).item()
    values -= mean
    return mean


# %% largest_mean: wrong wrong_value


def rank_zero_metric(values):
    mean = values.mean()
    dist.all_reduce(mean, op=dist.ReduceOp.MAX)
    return mean.item()


# %% five_all_reduces_values: wrong mismatch

# mistake: all-reduces the values themselves: changes them, and their lengths differ


def rank_zero_metric(values: Tensor) -> float:
    count = values.new_tensor(len(values))
    dist.all_reduce(values)
    dist.all_reduce(count)
    return (values.sum() / count).item()


# %% five_truncated_gather: wrong mismatch

# mistake: all_gather with receive buffers shaped like this rank's own values, although lengths differ


def rank_zero_metric(values: Tensor) -> float:
    parts = [torch.zeros_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, values)
    return torch.cat(parts).mean().item()
