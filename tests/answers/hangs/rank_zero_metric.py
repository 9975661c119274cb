"""Answers to ``rank_zero_metric`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist


def sum_and_count(values):
    return torch.stack([values.sum(), values.new_tensor(len(values))])


def mean_of_all(values):
    total = sum_and_count(values)
    dist.all_reduce(total)
    return total[0] / total[1]


# %% two_collectives: pass
def rank_zero_metric(values):
    total, count = values.sum(), torch.tensor(len(values), device=values.device)
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total.item() / count.item()


# %% in_a_group_of_its_own: pass
def rank_zero_metric(values):
    group = dist.new_group(list(range(dist.get_world_size())))
    total = sum_and_count(values)
    group.allreduce([total]).wait()
    return (total[0] / total[1]).item()


# %% only_the_printing_is_for_rank_zero: pass
def rank_zero_metric(values):
    sums = [torch.zeros(2, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(sums, sum_and_count(values).double())
    total, count = torch.stack(sums).sum(dim=0).tolist()
    if dist.get_rank() == 0:
        print(f"metric: {total / count:.3f}")
    return total / count


# %% in_messages_to_rank_zero_and_back: pass
def rank_zero_metric(values):
    total = sum_and_count(values).double()
    ranks = range(1, dist.get_world_size())
    if dist.get_rank() == 0:
        own = torch.empty_like(total)
        for rank in ranks:
            dist.recv(own, src=rank)
            total += own
        for rank in ranks:
            dist.send(total, dst=rank)
    else:
        dist.send(total, dst=0)
        dist.recv(total, src=0)
    return float(total[0] / total[1])


# %% returns_a_tensor: wrong wrong_type
def rank_zero_metric(values):
    return mean_of_all(values)


# %% centres_the_callers_values: wrong input_changed
def rank_zero_metric(values):
    mean = mean_of_all(values).item()
    values -= mean
    return mean


# %% largest_mean: wrong wrong_value
def rank_zero_metric(values):
    mean = values.mean()
    dist.all_reduce(mean, op=dist.ReduceOp.MAX)
    return mean.item()


# %% receives_as_many_values_as_its_own: wrong mismatch
def rank_zero_metric(values):
    parts = [torch.zeros_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, values)
    return torch.cat(parts).mean().item()
