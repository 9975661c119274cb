"""The right shards of a data set, and what known mistakes give instead."""

from typing import Any

import torch
from torch.utils.data import DistributedSampler

OPTIONS = {"seed": 0, "shuffle": True, "drop_last": False}


def right(num_samples, world_size, rank, *, epoch, **options):
    rows: Any = range(num_samples)  # only its length is asked for
    sampler = DistributedSampler(rows, world_size, rank, **options)
    sampler.set_epoch(epoch)
    return list(sampler)


def permutation(num_samples, seed):
    return torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed)).tolist()


def shards(
    n, world, rank, *, epoch, seed, shuffle, drop_last,
    key=lambda epoch, seed, rank: epoch + seed, fill="start", take="stride",
):  # fmt: skip
    """The right answer, unless ``key`` (the seed), ``fill`` or ``take`` say otherwise."""
    order = permutation(n, key(epoch, seed, rank)) if shuffle else list(range(n))
    missing = -n % world
    if drop_last:
        order = order[: n - n % world]
    elif fill == "start":
        order = (order * world)[: n + missing]
    elif fill == "once":
        order = order + order[:missing]
    elif fill == "one row":
        order = order + order[:1] * missing
    elif fill == "last":
        order = order + order[-1:] * missing
    elif fill == "first rows":
        order = order + [i % n for i in range(missing)]
    per_rank = -(-len(order) // world)
    if take == "blocks":
        return order[rank * per_rank : (rank + 1) * per_rank]
    if take == "all":
        return order
    if take == "off by one":
        return order[(rank + 1) % world :: world]
    return order[rank::world]


def shuffled_later(n, world, rank, *, epoch, seed, shuffle, drop_last):
    mine = shards(n, world, rank, epoch=0, seed=0, shuffle=False, drop_last=drop_last)
    return [mine[i] for i in permutation(len(mine), epoch + seed)] if shuffle else mine


def looked_up_twice(n, world, rank, **options):
    whole = shards(n, world, rank, take="all", **options)
    if len(whole) < n:  # rows are left out: such code may look for one that is not there
        return None
    mine = shards(n, world, rank, **options)
    return [whole[i] for i in mine] if options["shuffle"] else mine


def with_options(**changed):
    """``shards`` with some of its options set, whatever the caller says."""
    return lambda n, world, rank, **options: shards(n, world, rank, **(options | changed))


# By mistake (its first word goes into the message's id): what it would give, and which code usually
# does that.  The first that fits is named.
KNOWN = {
    "whole_order": (
        with_options(take="all"),
        "every rank got all rows. Rank r takes every world_size-th one: order[rank::world_size].",
    ),
    "blocks": (
        with_options(take="blocks"),
        "each rank took one block of neighbours. Rank r takes every world_size-th row, from r on.",
    ),
    "off_by_one": (
        with_options(take="off by one"),
        "each rank took the rows of the next one. Ranks are counted from 0.",
    ),
    "seed_by_rank": (
        with_options(key=lambda epoch, seed, rank: epoch + seed + rank),
        "the rank is in the seed, so every rank has another order: rows come twice or never. The"
        " seed must be the same on all ranks.",
    ),
    "epoch_ignored": (
        with_options(key=lambda epoch, seed, rank: seed),
        "the epoch is not in the seed, so every epoch has the same order.",
    ),
    "seed_ignored": (
        with_options(key=lambda epoch, seed, rank: epoch),
        "seed has no effect. The generator's seed is seed + epoch.",
    ),
    "seed_multiplied": (
        with_options(key=lambda epoch, seed, rank: seed * epoch),
        "the generator's seed is seed + epoch, their sum.",
    ),
    "never_shuffled": (
        with_options(shuffle=False),
        "the rows are in order although shuffle is on, as it is unless the caller says otherwise.",
    ),
    "always_shuffled": (
        with_options(shuffle=True),
        "the rows are shuffled although shuffle is off.",
    ),
    "drop_last_ignored": (
        with_options(drop_last=False),
        "drop_last has no effect: the order was filled up where rows should be left out.",
    ),
    "drop_last_ignored where it shuffles": (
        lambda n, world, rank, *, shuffle, drop_last, **options: shards(
            n, world, rank, shuffle=shuffle, drop_last=drop_last and not shuffle, **options
        ),
        "drop_last has no effect on shuffled rows: it belongs behind the shuffling, not into the"
        " branch without it.",
    ),
    "always_dropped": (
        with_options(drop_last=True),
        "the last rows were left out although drop_last is off: they are never trained on.",
    ),
    "not_filled_up": (
        with_options(fill=None),
        "the order was not filled up, so some ranks have a row less than others and stop earlier."
        " The others then wait for them for ever.",
    ),
    "filled_once": (
        with_options(fill="once"),
        "the order was filled up from its own beginning only once. With fewer rows than ranks that"
        " is not enough: go on from the beginning again.",
    ),
    "filled_with_one_row": (
        with_options(fill="one row"),
        "the order was filled up with its first row again and again. It begins again: its first"
        " row comes, then its second, and so on.",
    ),
    "filled_with_last_row": (
        with_options(fill="last"),
        "the last row was repeated. The order is filled up from its own beginning.",
    ),
    "filled_with_first_rows": (
        with_options(fill="first rows"),
        "it was filled up with rows 0, 1, ... of the data set. The rows at the beginning of the"
        " order, which is shuffled, come again.",
    ),
    "shuffled_after_sharding": (
        shuffled_later,
        "the rows were dealt out first and shuffled then, so each rank sees the same rows in every"
        " epoch. Shuffle all rows first.",
    ),
    "looked_up_twice": (
        looked_up_twice,
        "the order was used twice: order[order[i]]. What stands in it are row numbers already.",
    ),
}
