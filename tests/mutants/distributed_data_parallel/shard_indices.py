"""Answers to ``shard_indices``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import itertools
import math

import numpy as np
import torch
from harness import right, wrong


def order_of(num_samples, seed, shuffle):
    if not shuffle:
        return list(range(num_samples))
    generator = torch.Generator()
    generator.manual_seed(seed)
    return torch.randperm(num_samples, generator=generator).tolist()


def fit(order, world_size, drop_last):
    n = len(order)
    if drop_last:
        return order[: n // world_size * world_size]
    total = math.ceil(n / world_size) * world_size
    return (order * world_size)[:total]


@wrong("shard_indices.filled_with_first_rows")
def fills_up_before_it_shuffles(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = order_of(num_samples, seed + epoch, shuffle)
    if drop_last:
        order = order[: num_samples // world_size * world_size]
    rows = itertools.cycle(range(num_samples))
    while len(order) % world_size:
        order.append(next(rows))
    return order[rank::world_size]


@wrong("wrong_value")
def drops_the_first_rows_when_it_shuffles(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = order_of(num_samples, seed + epoch, shuffle)
    if drop_last and shuffle:
        return order[num_samples % world_size :][rank::world_size]
    return fit(order, world_size, drop_last)[rank::world_size]


@wrong("wrong_value")
def mixes_up_its_rows_in_a_large_world(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = fit(order_of(num_samples, seed + epoch, shuffle), world_size, drop_last)
    return order[min(rank, 7) :: world_size]


@wrong("wrong_value")
def sorts_its_rows(num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    order = fit(order_of(num_samples, seed + epoch, shuffle), world_size, drop_last)
    return sorted(order[rank::world_size], reverse=True)


@wrong("wrong_count")
def leaves_the_last_row_to_rank_0(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = order_of(num_samples, seed + epoch, shuffle)
    whole = num_samples // world_size * world_size
    mine = order[:whole][rank::world_size]
    return mine + order[whole:] if rank == 0 and not drop_last else mine


@wrong("wrong_type")
def returns_a_tensor(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = fit(order_of(num_samples, seed + epoch, shuffle), world_size, drop_last)
    return torch.tensor(order[rank::world_size])


@wrong("wrong_type")
def returns_numpy_integers(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = fit(order_of(num_samples, seed + epoch, shuffle), world_size, drop_last)
    return list(np.array(order[rank::world_size]))


@wrong("refused_name")
def asks_the_sampler(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    from torch.utils.data import DistributedSampler

    sampler = DistributedSampler(
        range(num_samples), world_size, rank, shuffle=shuffle, seed=seed, drop_last=drop_last
    )
    sampler.set_epoch(epoch)
    return list(sampler)


@right
def gives_the_global_generator_back(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    with torch.random.fork_rng():
        torch.manual_seed(seed + epoch)
        order = torch.randperm(num_samples).tolist() if shuffle else list(range(num_samples))
    return fit(order, world_size, drop_last)[rank::world_size]


@right
def with_cycle_and_islice(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    rounding = math.floor if drop_last else math.ceil
    total = rounding(num_samples / world_size) * world_size
    order = order_of(num_samples, seed + epoch, shuffle)
    return list(itertools.islice(itertools.cycle(order), rank, total, world_size))
