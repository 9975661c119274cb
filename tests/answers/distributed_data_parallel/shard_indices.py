"""Answers to ``shard_indices`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import itertools
import math
import torch
from itertools import cycle
from itertools import islice


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


# %% four_itertools: pass

# Style: lazy iterators, cycle and islice.


def shard_indices(
    num_samples: int,
    world_size: int,
    rank: int,
    *,
    epoch: int,
    seed: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
) -> list[int]:
    if shuffle:
        rng = torch.Generator()
        rng.manual_seed(seed + epoch)
        order = torch.randperm(num_samples, generator=rng).tolist()
    else:
        order = range(num_samples)
    rounds, left = divmod(num_samples, world_size)
    rounds += bool(left) and not drop_last
    return list(islice(cycle(order), rank, rounds * world_size, world_size))


# %% four_lists: pass

# Style: plain Python lists, repeat the order as often as needed, then a strided slice.


def shard_indices(
    num_samples: int,
    world_size: int,
    rank: int,
    *,
    epoch: int,
    seed: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
) -> list[int]:
    if shuffle:
        generator = torch.Generator()
        generator.manual_seed(seed + epoch)
        order = torch.randperm(num_samples, generator=generator).tolist()
    else:
        order = list(range(num_samples))
    if drop_last:
        total = num_samples // world_size * world_size
    else:
        total = -(-num_samples // world_size) * world_size
        order = order * (-(-total // num_samples))
    return order[rank:total:world_size]


# %% four_matrix: pass

# Style: tensors only; cut or fill to a (steps, ranks) matrix and take one column.


def shard_indices(
    num_samples: int,
    world_size: int,
    rank: int,
    *,
    epoch: int,
    seed: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
) -> list[int]:
    order = torch.arange(num_samples)
    if shuffle:
        order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed + epoch))
    rest = num_samples % world_size
    if rest and drop_last:
        order = order[: num_samples - rest]
    elif rest:
        need = num_samples + world_size - rest
        order = order.repeat(math.ceil(need / num_samples))[:need]
    return order.view(-1, world_size)[:, rank].tolist()


# %% four_modulo: pass

# Style: index arithmetic; no padded list is ever built, places wrap round with a modulo.


def shard_indices(
    num_samples: int,
    world_size: int,
    rank: int,
    *,
    epoch: int,
    seed: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
) -> list[int]:
    per_rank = num_samples // world_size
    if not drop_last and num_samples % world_size:
        per_rank += 1
    places = [(rank + i * world_size) % num_samples for i in range(per_rank)]
    if not shuffle:
        return places
    perm = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed + epoch))
    return [int(perm[place]) for place in places]


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
