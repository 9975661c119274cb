"""What is wrong with an answer to ``distributed_data_parallel.shard_indices``."""

import torch
from torch.utils.data import DistributedSampler

from multigpu.checking import Wrong, describe
from multigpu.checking.wording import count

OPTIONS = {"seed": 0, "shuffle": True, "drop_last": False}


def right(num_samples, world_size, rank, *, epoch, **options):
    sampler = DistributedSampler(range(num_samples), world_size, rank, **options)
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
    mine = shards(n, world, rank, **options)
    return [whole[i] for i in mine] if options["shuffle"] else mine


def with_options(**changed):
    """``shards`` with some of its options set, whatever the caller says."""
    return lambda n, world, rank, **options: shards(n, world, rank, **(options | changed))


# By mistake: what it would give, and which code usually does that.  The first that fits is named.
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


class Report:
    """What the calls gave, and what is wrong with it."""

    def __init__(self, calls, answer):
        self.calls = [(places, OPTIONS | named) for places, named in calls]
        self.written = [shown(*call) for call in calls]
        self.right = [right(*places, **named) for places, named in self.calls]
        self.results = answer.result
        self.where = answer.where

    def wrong(self, mistake, i, expected, came, usually):
        return Wrong(
            f"shard_indices.{mistake}",
            expected=f"{self.written[i]} gives {expected}",
            came=came,
            usually=usually,
            where=self.where,
        )

    def examine(self):
        for i, came in enumerate(self.results):
            self.examine_type(i, came)
        for i, (came, wanted) in enumerate(zip(self.results, self.right, strict=True)):
            if came != wanted:
                raise self.explained(i, came, wanted)

    def examine_type(self, i, came):
        if came is None:
            raise self.wrong(
                "returned_nothing", i, "a list", "None", "the function ends without `return`."
            )
        if not isinstance(came, list) or not all(type(index) is int for index in came):
            inside = [] if not isinstance(came, list) else [v for v in came if type(v) is not int]
            raise self.wrong(
                "not_a_list_of_integers",
                i,
                "a list of Python integers",
                describe(came) + (f" with {describe(inside[0])} in it" if inside else ""),
                "a tensor becomes such a list with .tolist(), a range with list(...).",
            )

    def explained(self, i, came, wanted):
        for mistake, (rule, usually) in KNOWN.items():
            known = [rule(*places, **named) for places, named in self.calls]
            if known == self.results:
                return self.wrong(mistake, i, rows(wanted), rows(came), usually)
        if len(came) != len(wanted):
            return self.wrong(
                "wrong_number",
                i,
                f"{count(len(wanted), 'row')}: {rows(wanted)}",
                f"{count(len(came), 'row')}: {rows(came)}",
                "each rank gets the number of rows divided by world_size: rounded up, or down with"
                " drop_last. All ranks get the same number.",
            )
        if sorted(came) == sorted(wanted):
            return self.wrong(
                "wrong_order",
                i,
                rows(wanted),
                f"the same rows in another order: {rows(came)}",
                "something was sorted or shuffled once more.",
            )
        return self.wrong(
            "wrong_rows",
            i,
            rows(wanted),
            rows(came),
            "the order is that of torch.randperm with a new generator, whose seed is seed + epoch;"
            " Python's random and NumPy give others."
            if self.calls[i][1]["shuffle"]
            else "rank r takes the rows at r, r + world_size, r + 2 * world_size, and so on.",
        )


def shown(places, named):
    words = [*map(str, places), *(f"{name}={value}" for name, value in named.items())]
    return f"shard_indices({', '.join(words)})"


def rows(indices):
    """For example "[0, 2, 4]"; the first of a long list."""
    if len(indices) > 10:
        return f"[{', '.join(map(str, indices[:8]))}, ...], {len(indices)} in all"
    return str(indices)
