"""``hangs.rank_zero_metric``: the mean over the values of all ranks, known on all of them."""

import torch
import torch.distributed as dist

from multigpu.checking.comparing import Near
from multigpu.checking.declaration import case, exercise
from multigpu.ranks import rank_device
from multigpu.ranks.errors import listed

rank_zero_metric = exercise(
    "hangs.rank_zero_metric",
    expects="the mean over the values of all ranks, on every rank: {mean}",
    keeps=["values"],
)


@rank_zero_metric.cases
def cases():
    yield a_case([2, 5, 1], alone=True)
    for world in (3, 2, 4, 1):
        yield a_case([3, 1, 2, 6][:world])
        yield a_case([3] * world)
        yield a_case([1, 4, 2, 6][:world], torch.float32)


def a_case(counts, dtype=torch.float64, alone=False):
    """So many values for each rank."""
    generator = torch.Generator().manual_seed(sum(counts))
    values = [
        torch.randn(count, generator=generator, dtype=dtype) + rank
        for rank, count in enumerate(counts)
    ]
    title = f"ranks with {listed(counts)} values of {str(dtype)[6:]}"
    return case(title, world=len(counts), alone=alone, of=values)


@rank_zero_metric.arguments
def arguments(case, rank):
    return (case.of[rank].to(rank_device()),)


@rank_zero_metric.expected
def expected(case):
    return [Near(mean(case), digits=5)] * case.world


def mean(case):
    return torch.cat(case.of).mean().item()


@rank_zero_metric.words
def words(case):
    return {"mean": f"{mean(case):.6g}", "count": sum(map(len, case.of))}


def sum_and_count(values):
    return torch.stack([values.sum(), values.new_tensor(len(values))])


@rank_zero_metric.right
def rank_zero_works_and_tells(values):
    total = sum_and_count(values)
    dist.reduce(total, dst=0)
    mean = total[0] / total[1]
    dist.broadcast(mean, src=0)
    return float(mean)


@rank_zero_metric.right
def gathers_everything(values):
    everything: list[list[float]] = [[]] * dist.get_world_size()
    dist.all_gather_object(everything, values.tolist())
    flat = [value for own in everything for value in own]
    return sum(flat) / len(flat)


@rank_zero_metric.mistake(
    "only_some_ranks_call",
    "some ranks call a collective and the others return without it, usually because the call is"
    " under `if dist.get_rank() == 0`, or a `return` comes before it.",
    fix="Let every rank make the call: only printing is for rank 0 alone.",
    status="hang",
    roughly=True,
)
def as_it_was_handed_out(values):
    total = sum_and_count(values)
    if dist.get_rank() == 0:
        dist.all_reduce(total)
    return (total[0] / total[1]).item()


@rank_zero_metric.mistake(
    "mean_of_means",
    "this is the mean of the ranks' means, in which a value of a small rank counts more.",
    fix="Add up sums and counts over the ranks, then divide once.",
)
def averages_the_means(values):
    mean = values.mean()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


@rank_zero_metric.mistake(
    "own_mean",
    "each rank has the mean of its own values, and nothing of the other ranks is in it.",
    fix="Without a collective nothing hangs, but nothing is shared either.",
)
def takes_the_collective_away(values):
    return values.mean().item()


@rank_zero_metric.mistake(
    "only_rank_zero_knows",
    "`reduce` and `gather` bring the result to one rank, and the others have their own mean.",
    fix="Use all_reduce, or broadcast the result afterward.",
)
def reduces_to_rank_zero(values):
    total = sum_and_count(values)
    dist.reduce(total, dst=0)
    return (total[0] / total[1]).item() if dist.get_rank() == 0 else values.mean().item()


@rank_zero_metric.mistake(
    "rank_zeros_mean",
    "this is the mean of rank 0's values: `broadcast` hands on what one rank has, adding nothing.",
    fix="Add up sums and counts over the ranks first.",
)
def broadcasts_rank_zeros_mean(values):
    mean = values.mean()
    dist.broadcast(mean, src=0)
    return mean.item()
