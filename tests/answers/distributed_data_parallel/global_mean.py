"""Answers to ``global_mean`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import math
import torch
import torch.distributed as dist
from torch import Tensor


def added(*numbers):
    tensor = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(tensor)
    return tensor.tolist()


# %% two_collectives: pass


def global_mean(values):
    total = values.sum().double()
    count = torch.tensor(values.numel())
    dist.all_reduce(total)
    dist.all_reduce(count)
    return (total / count).item()


# %% gathers_tensors_as_objects: pass


def global_mean(values):
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, values)
    return torch.cat([v.reshape(-1) for v in everything]).to(torch.float64).mean().item()


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


# %% five_gather_python: pass

# style: gathers (sum, count) as Python objects and uses math.fsum


def global_mean(values: Tensor) -> float:
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, (values.double().sum().item(), values.numel()))
    count = sum(n for _, n in parts)
    return math.fsum(s for s, _ in parts) / count if count else math.nan


# %% five_pad_and_gather_values: pass

# style: unusual: gathers the values themselves, padded to the longest, and takes their mean locally


def global_mean(values: Tensor) -> float:
    world = dist.get_world_size()
    flat = values.detach().reshape(-1).to(torch.float64)
    length = torch.tensor([flat.numel()], device=values.device)
    lengths = [torch.empty_like(length) for _ in range(world)]
    dist.all_gather(lengths, length)
    lengths = [int(n) for n in lengths]
    longest = max(lengths)
    if longest == 0:
        return float("nan")
    padded = flat.new_zeros(longest)
    padded[: flat.numel()] = flat
    rows = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(rows, padded)
    return torch.cat([row[:n] for row, n in zip(rows, lengths)]).mean().item()


# %% five_sum_and_count_double: pass

# style: sum and count in one float64 vector, one all-reduce, tensor division gives nan for 0 / 0


def global_mean(values: Tensor) -> float:
    stats = torch.zeros(2, dtype=torch.float64, device=values.device)
    stats[0] = values.detach().double().sum()
    stats[1] = values.numel()
    dist.all_reduce(stats)
    return (stats[0] / stats[1]).item()


# %% five_weighted_local_means: pass

# style: weighted mean of local means, two async all-reduces, reduce to rank 0 and broadcast


def global_mean(values: Tensor) -> float:
    with torch.no_grad():
        n = torch.tensor(values.numel(), device=values.device)
        local = values.to(torch.float64).mean() if values.numel() else n.double() * 0
        weighted = (local * n).double()
        works = [dist.reduce(t, dst=0, async_op=True) for t in (n, weighted)]
        for work in works:
            work.wait()
        result = weighted / n
        dist.broadcast(result, src=0)
    return float(result)


# %% five_float32: pass

# mistake: float32 accumulation: large integers lose their last digits


def global_mean(values: Tensor) -> float:
    stats = torch.tensor([values.float().sum(), values.numel()], dtype=torch.float32)
    dist.all_reduce(stats)
    return (stats[0] / stats[1]).item()


# %% five_skips_nan_values: pass

# mistake: uses nansum to be "safe", so a nan among the values is hidden and still counted


def global_mean(values: Tensor) -> float:
    stats = torch.stack([values.double().nansum(), torch.tensor(float(values.numel())).double()])
    dist.all_reduce(stats)
    return (stats[0] / stats[1]).item()


# %% prints_it: wrong returned_nothing


def global_mean(values):
    total, count = added(values.sum().item(), values.numel())
    print(total / count)


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
