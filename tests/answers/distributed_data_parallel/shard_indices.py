"""Answers to ``shard_indices`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import itertools
import math
import torch
from exercises.distributed_data_parallel.shard_indices import fit, order_of


# %% gives_the_global_generator_back: pass
def shard_indices(num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    with torch.random.fork_rng():
        torch.manual_seed(seed + epoch)
        order = torch.randperm(num_samples).tolist() if shuffle else list(range(num_samples))
    return fit(order, world_size, drop_last)[rank::world_size]


# %% with_cycle_and_islice: pass
def shard_indices(num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    rounding = math.floor if drop_last else math.ceil
    total = rounding(num_samples / world_size) * world_size
    order = order_of(num_samples, seed + epoch, shuffle)
    return list(itertools.islice(itertools.cycle(order), rank, total, world_size))


# %% drops_the_first_rows_when_it_shuffles: wrong wrong_value
def shard_indices(num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    order = order_of(num_samples, seed + epoch, shuffle)
    if drop_last and shuffle:
        return order[num_samples % world_size :][rank::world_size]
    return fit(order, world_size, drop_last)[rank::world_size]


# %% leaves_the_last_row_to_rank_0: wrong wrong_count
def shard_indices(num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    order = order_of(num_samples, seed + epoch, shuffle)
    whole = num_samples // world_size * world_size
    mine = order[:whole][rank::world_size]
    return mine + order[whole:] if rank == 0 and not drop_last else mine


# %% returns_a_tensor: wrong wrong_type
def shard_indices(num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    order = fit(order_of(num_samples, seed + epoch, shuffle), world_size, drop_last)
    return torch.tensor(order[rank::world_size])


# %% asks_the_sampler: wrong refused_name
def shard_indices(num_samples, world_size, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    from torch.utils.data import DistributedSampler

    sampler = DistributedSampler(
        range(num_samples), world_size, rank, shuffle=shuffle, seed=seed, drop_last=drop_last
    )
    sampler.set_epoch(epoch)
    return list(sampler)
