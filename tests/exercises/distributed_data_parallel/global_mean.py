"""``distributed_data_parallel.global_mean``: every value counts once, whichever rank holds it."""

import math

import torch
import torch.distributed as dist

from multigpu.checking.comparing import Near
from multigpu.checking.declaration import case, exercise
from multigpu.ranks import rank_device
from multigpu.ranks.errors import counted, listed

global_mean = exercise(
    "distributed_data_parallel.global_mean",
    expects="the mean of all ranks' values, on every rank",
    keeps=["values"],
)

COUNTS = [  # of values on each rank
    *([4, 1, 3], [3, 0, 1], [5, 1, 2], [2, 2, 2], [0, 0, 5], [0, 0, 0]),
    *([1, 4], [0, 3], [0, 0]),
    *([1, 5, 0, 2], [0, 0, 0, 0]),
    *([4], [0]),
]


@global_mean.cases
def cases():
    for counts in COUNTS:
        yield a_case(values_of([(number,) for number in counts]))
    yield a_case(values_of([(4,), (1,), (3,)], torch.int64))
    yield a_case(values_of([(2, 3), (), (1, 2, 2)]))
    yield a_case(values_of([(3,), (0,), (2, 2)], torch.float32))
    yield a_case(values_of([(0,), (2,), (3, 2)], torch.int32))
    small = values_of([(20,), (3,), (30,)])
    yield a_case([values.abs().to(torch.uint8) for values in small])  # 255 is the largest number
    # All sums together are too large for float16, and bfloat16 has no number 301.
    yield a_case(spread((200, 200.0), (3, 100.0), (200, 150.0), dtype=torch.float16))
    yield a_case(spread((150, 2.0), (1, 5.0), (150, 4.0), dtype=torch.bfloat16))


def a_case(values):
    world, dtype = len(values), str(values[0].dtype)[6:]
    shapes = listed(tuple(own.shape) for own in values)
    title = f"{counted(world, 'rank')}, {dtype}, values of shape {shapes}"
    return case(title, world=world, values=values, dtype=dtype)


def values_of(shapes, dtype=torch.float64):
    """Values for each rank; their means differ from rank to rank."""
    generator = torch.Generator().manual_seed(len(str(shapes)))
    return [
        (torch.randn(shape, generator=generator, dtype=torch.float64) * 9 + 20 * rank + 1).to(dtype)
        for rank, shape in enumerate(shapes)
    ]


def spread(*groups, dtype):
    """``count`` values of this mean for each rank, all close to it; sums are exact in ``dtype``."""
    return [
        torch.cat([mean + step, mean - step, torch.full((number % 2,), mean)]).to(dtype)
        for number, mean in groups
        for step in [torch.arange(number // 2) % 4 / 4]
    ]


@global_mean.arguments
def arguments(case, rank):
    return (case.values[rank].clone().to(rank_device()),)


@global_mean.expected
def expected(case):
    everything = torch.cat([own.double().flatten() for own in case.values])
    return [Near(everything.mean().item(), digits=5)] * case.world  # nan where there is nothing


# --- what answers are made of --------------------------------------------------------------------


def added(*numbers):
    tensor = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(tensor)
    return tensor.tolist()


# --- right answers -------------------------------------------------------------------------------


@global_mean.right
def gathers_everything(values):
    everything: list = [None] * dist.get_world_size()
    dist.all_gather_object(everything, values.flatten().tolist())
    flat = [value for own in everything for value in own]
    return sum(flat) / len(flat) if flat else float("nan")


# --- mistakes ------------------------------------------------------------------------------------


@global_mean.mistake(
    "mean_of_means",
    "the ranks' means were averaged, so the values of a rank with few of them count more.",
    fix="Add up sums and counts over the ranks, and divide once.",
)
def averages_the_means(values):
    mean = values.double().mean().item() if values.numel() else 0.0
    return added(mean)[0] / dist.get_world_size()


@global_mean.mistake(
    "returns_without_values",
    "a rank without values returned at once, and the other ranks wait for its part.",
    fix="Every rank makes the same calls: one without values takes part with sum 0 and count 0.",
    status="hang",
)
def returns_without_values(values):
    if values.numel() == 0:
        return math.nan
    total, number = added(values.sum().item(), values.numel())
    return total / number


@global_mean.mistake(
    "called_on_one_rank",
    "only rank 0 calls the collective, and waits for the other ranks.",
    fix="Every rank makes the same calls: no collective belongs under `if rank == 0`.",
    status="hang",
)
def only_rank_zero_asks(values):
    if dist.get_rank() == 0:
        total, number = added(values.sum().item(), values.numel())
        return total / number
    return values.sum().item() / max(values.numel(), 1)


@global_mean.mistake(
    "divided_by_zero",
    "no rank has any value, and Python's numbers cannot be divided by zero.",
    fix="Without any value the mean is nan: 0 / 0 of tensors is nan, or return math.nan.",
    status="crash",
)
def divides_by_zero(values):
    total, number = added(values.sum().item(), values.numel())
    return total / number


@global_mean.mistake(
    "not_nan",
    "no rank has any value, so there is no mean, and 0 would look like a measurement.",
    fix="Return nan: 0 / 0 of tensors is nan.",
)
def zero_for_nothing(values):
    total, number = added(values.sum().item(), values.numel())
    return total / max(number, 1)


@global_mean.mistake(
    "nan_from_an_empty_rank",
    "a rank has no values, its mean is nan, and nan plus anything is nan.",
    fix="The sum and the count of nothing are 0: send those, not means.",
)
def weights_a_mean_that_is_nan(values):
    total, number = added(values.double().mean().item() * values.numel(), values.numel())
    return total / number if number else math.nan


@global_mean.mistake(
    "own_mean",
    "this is the mean of the rank's own values: nothing of the other ranks is in it.",
    fix="Add up sums and counts over all ranks with all_reduce, then divide.",
)
def its_own_mean(values):
    return values.double().mean().item()


@global_mean.mistake(
    "only_added",
    "this is the sum of all values, which was never divided.",
    fix="Divide it by the number of all values.",
)
def never_divides(values):
    return added(values.sum().item())[0]


@global_mean.mistake(
    "divided_by_ranks",
    "the sum of all values was divided by the number of ranks.",
    fix="Divide it by the number of all values: all-reduce the counts too.",
)
def divides_by_the_ranks(values):
    return added(values.sum().item())[0] / dist.get_world_size()


@global_mean.mistake(
    "on_rank_zero_only",
    "dist.reduce brings sum and count to rank 0 alone.",
    fix="Use all_reduce: every rank returns the mean.",
)
def reduces_to_rank_zero(values):
    total = torch.tensor([values.sum().item(), values.numel()], dtype=torch.float64)
    dist.reduce(total, dst=0)
    return (total[0] / total[1]).item()


@global_mean.mistake(
    "not_a_float",
    "a tensor was returned.",
    fix=".item() takes the number out of a tensor.",
)
def returns_a_tensor(values):
    total = torch.tensor([values.sum().item(), values.numel()], dtype=torch.float64)
    dist.all_reduce(total)
    return total[0] / total[1]


@global_mean.mistake(
    "rows_counted",
    "the sum was divided by the number of rows: len(values) counts along the first dimension only.",
    fix="values.numel() counts all values.",
)
def counts_rows(values):
    rows = len(values) if values.ndim else 1
    total, number = added(values.sum().item(), rows)
    return total / number if number else math.nan


@global_mean.mistake(
    "summed_in_own_dtype",
    "sum and count were added up in {dtype}, the dtype of the values, which cannot hold them.",
    fix="Use float64 for both.",
)
def in_the_dtype_of_the_values(values):
    total = values.sum(dtype=values.dtype)
    number = torch.tensor(values.numel(), dtype=values.dtype)
    dist.all_reduce(total)
    dist.all_reduce(number)
    return (total / number).item()
