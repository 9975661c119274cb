"""Answers to ``shard_indices``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import itertools
import math
import random

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


@wrong("shard_indices.blocks")
def one_block_each(num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    order = fit(order_of(num_samples, seed + epoch, shuffle), world_size, drop_last)
    size = len(order) // world_size
    return order[rank * size : (rank + 1) * size]


@wrong("shard_indices.whole_order")
def all_rows_on_every_rank(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    return fit(order_of(num_samples, seed + epoch, shuffle), world_size, drop_last)


@wrong("shard_indices.seed_by_rank")
def another_seed_on_every_rank(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = fit(order_of(num_samples, seed + epoch + rank, shuffle), world_size, drop_last)
    return order[rank::world_size]


@wrong("shard_indices.epoch_ignored")
def forgets_the_epoch(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = fit(order_of(num_samples, seed, shuffle), world_size, drop_last)
    return order[rank::world_size]


@wrong("shard_indices.seed_ignored")
def forgets_the_seed(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = fit(order_of(num_samples, epoch, shuffle), world_size, drop_last)
    return order[rank::world_size]


@wrong("shard_indices.not_filled_up")
def ranks_with_different_numbers(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = order_of(num_samples, seed + epoch, shuffle)
    if drop_last:
        order = order[: num_samples // world_size * world_size]
    return order[rank::world_size]


@wrong("shard_indices.filled_once")
def fills_up_once(num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    order = order_of(num_samples, seed + epoch, shuffle)
    missing = -num_samples % world_size
    order = (
        order[: num_samples - num_samples % world_size] if drop_last else order + order[:missing]
    )
    return order[rank::world_size]


@wrong("shard_indices.filled_with_last_row")
def repeats_the_last_row(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = order_of(num_samples, seed + epoch, shuffle)
    if drop_last:
        order = order[: num_samples // world_size * world_size]
    while len(order) % world_size:
        order.append(order[-1])
    return order[rank::world_size]


@wrong("shard_indices.filled_with_one_row")
def repeats_the_first_row(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = order_of(num_samples, seed + epoch, shuffle)
    if drop_last:
        order = order[: num_samples // world_size * world_size]
    while len(order) % world_size:
        order.append(order[0])
    return order[rank::world_size]


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


@wrong("shard_indices.drop_last_ignored")
def never_drops(num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    order = fit(order_of(num_samples, seed + epoch, shuffle), world_size, False)
    return order[rank::world_size]


@wrong("shard_indices.drop_last_ignored")
def drops_only_what_is_in_order(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = order_of(num_samples, seed + epoch, shuffle)
    return fit(order, world_size, drop_last and not shuffle)[rank::world_size]


@wrong("shard_indices.wrong_rows")
def drops_the_first_rows_when_it_shuffles(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = order_of(num_samples, seed + epoch, shuffle)
    if drop_last and shuffle:
        return order[num_samples % world_size :][rank::world_size]
    return fit(order, world_size, drop_last)[rank::world_size]


@wrong("shard_indices.global_generator")
def seeds_the_global_generator(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = list(range(num_samples))
    if shuffle:
        torch.manual_seed(seed + epoch)
        order = torch.randperm(num_samples).tolist()
    return fit(order, world_size, drop_last)[rank::world_size]


@wrong("shard_indices.wrong_rows")
def mixes_up_its_rows_in_a_large_world(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = fit(order_of(num_samples, seed + epoch, shuffle), world_size, drop_last)
    return order[min(rank, 7) :: world_size]


@wrong("shard_indices.always_dropped")
def always_drops(num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    order = fit(order_of(num_samples, seed + epoch, shuffle), world_size, True)
    return order[rank::world_size]


@wrong("shard_indices.shuffled_after_sharding")
def shuffles_its_own_rows(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    mine = fit(list(range(num_samples)), world_size, drop_last)[rank::world_size]
    return [mine[i] for i in order_of(len(mine), seed + epoch, shuffle)]


@wrong("shard_indices.looked_up_twice")
def indices_of_indices(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = fit(order_of(num_samples, seed + epoch, shuffle), world_size, drop_last)
    return [order[i] for i in order[rank::world_size]]


@wrong("shard_indices.never_shuffled")
def ignores_shuffle(num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    return fit(list(range(num_samples)), world_size, drop_last)[rank::world_size]


@wrong("shard_indices.always_shuffled")
def shuffles_always(num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    order = fit(order_of(num_samples, seed + epoch, True), world_size, drop_last)
    return order[rank::world_size]


@wrong("shard_indices.seed_multiplied")
def seed_times_epoch(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = fit(order_of(num_samples, seed * epoch, shuffle), world_size, drop_last)
    return order[rank::world_size]


@wrong("shard_indices.off_by_one")
def counts_ranks_from_one(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = fit(order_of(num_samples, seed + epoch, shuffle), world_size, drop_last)
    return order[(rank + 1) % world_size :: world_size]


@wrong("shard_indices.wrong_rows")
def shuffles_with_python(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = list(range(num_samples))
    if shuffle:
        random.Random(seed + epoch).shuffle(order)
    return fit(order, world_size, drop_last)[rank::world_size]


@wrong("shard_indices.wrong_order")
def sorts_its_rows(num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    order = fit(order_of(num_samples, seed + epoch, shuffle), world_size, drop_last)
    return sorted(order[rank::world_size], reverse=True)


@wrong("shard_indices.wrong_number")
def leaves_the_last_row_to_rank_0(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = order_of(num_samples, seed + epoch, shuffle)
    whole = num_samples // world_size * world_size
    mine = order[:whole][rank::world_size]
    return mine + order[whole:] if rank == 0 and not drop_last else mine


@wrong("shard_indices.not_a_list_of_integers")
def returns_a_tensor(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = fit(order_of(num_samples, seed + epoch, shuffle), world_size, drop_last)
    return torch.tensor(order[rank::world_size])


@wrong("shard_indices.not_a_list_of_integers")
def returns_numpy_integers(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = fit(order_of(num_samples, seed + epoch, shuffle), world_size, drop_last)
    return list(np.array(order[rank::world_size]))


@wrong("shard_indices.returned_nothing")
def forgets_to_return(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = fit(order_of(num_samples, seed + epoch, shuffle), world_size, drop_last)
    order[rank::world_size]


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
def as_columns_of_a_table(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = torch.arange(num_samples)
    if shuffle:
        g = torch.Generator()
        g.manual_seed(epoch + seed)
        order = torch.randperm(num_samples, generator=g)
    rounds = num_samples // world_size if drop_last else -(-num_samples // world_size)
    table = order.repeat(world_size)[: rounds * world_size].view(rounds, world_size)
    return table[:, rank].tolist()


@right
def gives_the_global_generator_back(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    with torch.random.fork_rng():
        torch.manual_seed(seed + epoch)
        order = torch.randperm(num_samples).tolist() if shuffle else list(range(num_samples))
    return fit(order, world_size, drop_last)[rank::world_size]


@right
def one_index_at_a_time(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    order = order_of(num_samples, seed + epoch, shuffle)
    mine = []
    place = rank
    while place < num_samples or (not drop_last and place - rank < num_samples):
        if drop_last and place - rank + world_size > num_samples:
            break
        mine.append(order[place % num_samples])
        place += world_size
    return mine


@right
def with_cycle_and_islice(
    num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False
):
    rounding = math.floor if drop_last else math.ceil
    total = rounding(num_samples / world_size) * world_size
    order = order_of(num_samples, seed + epoch, shuffle)
    return list(itertools.islice(itertools.cycle(order), rank, total, world_size))
