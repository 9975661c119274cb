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


@wrong("global_mean.mean_of_means")
def averages_the_means(values):
    mean = values.double().mean().item() if values.numel() else 0.0
    return added(mean)[0] / dist.get_world_size()


@wrong("global_mean.mean_of_means")
def averages_the_means_of_those_with_values(values):
    mean = values.double().mean().item() if values.numel() else 0.0
    total, busy = added(mean, float(values.numel() > 0))
    return total / busy if busy else math.nan


@wrong("global_mean.nan_from_an_empty_rank")
def weighs_a_mean_that_is_nan(values):
    total, count = added(values.double().mean().item() * values.numel(), values.numel())
    return total / count if count else math.nan


@wrong("global_mean.calls_left_out", status="hang")
def returns_without_values(values):
    if values.numel() == 0:
        return math.nan
    total, count = added(values.sum().item(), values.numel())
    return total / count


@wrong("global_mean.calls_left_out", status="hang")
def only_rank_zero_asks(values):
    if dist.get_rank() == 0:
        total, count = added(values.sum().item(), values.numel())
        return total / count
    return values.sum().item() / max(values.numel(), 1)


@wrong("global_mean.not_nan")
def zero_for_nothing(values):
    total, count = added(values.sum().item(), values.numel())
    return total / max(count, 1)


@wrong("exception", status="crash")
def divides_by_zero(values):
    total, count = added(values.sum().item(), values.numel())
    return total / count


@wrong("global_mean.own_mean")
def its_own_mean(values):
    return values.double().mean().item()


@wrong("global_mean.only_added")
def never_divides(values):
    return added(values.sum().item())[0]


@wrong("global_mean.divided_by_ranks")
def divides_by_the_ranks(values):
    return added(values.sum().item())[0] / dist.get_world_size()


@wrong("global_mean.divided_by_own_count")
def divides_by_its_own_count(values):
    return added(values.sum().item())[0] / max(values.numel(), 1)


@wrong("global_mean.rows_counted")
def counts_rows(values):
    rows = len(values) if values.ndim else 1
    total, count = added(values.sum().item(), rows)
    return total / count if count else math.nan


@wrong("global_mean.whole_number")
def whole_numbers_stay_whole(values):
    total = torch.stack([values.sum(), torch.tensor(values.numel()).to(values.dtype)])
    dist.all_reduce(total)
    if total[1] == 0:
        return math.nan
    if values.is_floating_point():
        return (total[0] / total[1]).item()
    return float(total[0] // total[1])


@wrong("global_mean.only_rank_zero_knows")
def reduces_to_rank_zero(values):
    total = torch.tensor([values.sum().item(), values.numel()], dtype=torch.float64)
    dist.reduce(total, dst=0)
    return (total[0] / total[1]).item()


@wrong("global_mean.means_added")
def adds_the_means(values):
    return added(values.double().mean().item())[0]


@wrong("global_mean.not_a_float")
def returns_a_tensor(values):
    total = torch.tensor([values.sum().item(), values.numel()], dtype=torch.float64)
    dist.all_reduce(total)
    return total[0] / total[1]


@wrong("global_mean.returned_nothing")
def prints_it(values):
    total, count = added(values.sum().item(), values.numel())
    print(total / count)


@wrong("global_mean.values_changed")
def adds_up_in_the_callers_tensor(values):
    total, count = added(values.sum().item(), values.numel())
    values.zero_()
    return total / count if count else math.nan


@wrong("global_mean.other_value")
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
def gathers_everything(values):
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, values.flatten().tolist())
    flat = [value for own in everything for value in own]
    return sum(flat) / len(flat) if flat else float("nan")


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
