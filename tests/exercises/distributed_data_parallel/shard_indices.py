"""``distributed_data_parallel.shard_indices``: which rows of the data set one rank trains on."""

import itertools
from functools import partial
from typing import Any

import torch
from torch.utils.data import DistributedSampler

from multigpu.checking.declaration import case, exercise

shard_indices = exercise(
    "distributed_data_parallel.shard_indices",
    expects="each rank gets the rows that DistributedSampler gives it",
    everywhere=True,
)

IN_ORDER = [(6, 2), (5, 2), (8, 4), (7, 3), (76, 5), (9, 1)]  # rows, ranks
FEW_ROWS = [(3, 4), (2, 5), (1, 8), (3, 8)]
SHUFFLED = [(12, 3), (14, 4), (9, 1)]
SEEDS = [{"epoch": 0, "seed": 3}, {"epoch": 1, "seed": 3}, {"epoch": 5, "seed": 41}]
SIZES = [*itertools.product((1, 2, 7, 12), (2, 3, 5, 8)), (30, 12)]


@shard_indices.cases
def cases():
    for rows, ranks in IN_ORDER:
        yield a_case(rows, ranks, epoch=0, shuffle=False)
    for rows, ranks in [*IN_ORDER, (3, 4)]:
        yield a_case(rows, ranks, epoch=1, shuffle=False, drop_last=True)
    for rows, ranks in FEW_ROWS:
        yield a_case(rows, ranks, epoch=0, shuffle=False)
    for named in [{"epoch": 0}, {"epoch": 1}, {"epoch": 2}, *SEEDS]:
        for rows, ranks in SHUFFLED:
            yield a_case(rows, ranks, **named)
    for (rows, ranks), drop_last in itertools.product(SIZES, (False, True)):
        yield a_case(rows, ranks, epoch=2, seed=5, shuffle=False, drop_last=drop_last)
        yield a_case(rows, ranks, epoch=3, seed=11, shuffle=True, drop_last=drop_last)


def a_case(rows, ranks, **named):
    options = "".join(f", {key}={value}" for key, value in named.items())
    call = f"{rows}, {ranks}, rank{options}"
    return case(f"shard_indices({call})", rows=rows, ranks=ranks, named=named)


@shard_indices.drive
def drive(submission, case, devices):
    before = torch.get_rng_state()
    gets = partial(submission.shard_indices, case.rows, case.ranks, **case.named)
    came = {f"what rank {rank} gets": gets(rank) for rank in range(case.ranks)}
    return came | {"drew": not torch.equal(torch.get_rng_state(), before)}


@shard_indices.expected
def expected(case):
    return {f"what rank {rank} gets": sampled(case, rank) for rank in range(case.ranks)}


def sampled(case, rank):
    options = {"shuffle": True, "drop_last": False, "seed": 0} | case.named
    epoch = options.pop("epoch")
    rows: Any = range(case.rows)  # only its length is asked for
    sampler = DistributedSampler(rows, case.ranks, rank, **options)
    sampler.set_epoch(epoch)
    return list(sampler)


@shard_indices.holds(
    "global_generator",
    expects="torch's global random generator is afterwards what it was",
    usually="torch.manual_seed and torch.randperm without generator= use the generator of the whole"
    " program, so dropout and new weights would repeat their numbers in every epoch.",
    fix="Make a new torch.Generator, seed it, and pass it to randperm.",
)
def leaves_the_global_generator_alone(run, case):
    return "the rows are right, but its state changed" if run.came(case)["drew"] else None


# --- what answers are made of --------------------------------------------------------------------


def order_of(n, seed, shuffle):
    if not shuffle:
        return list(range(n))
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()


def fit(order, world, drop_last):
    n = len(order)
    return order[: n // world * world] if drop_last else (order * world)[: -(-n // world) * world]


def cut(order, world, drop_last):
    return order[: len(order) // world * world] if drop_last else order


# --- right answers -------------------------------------------------------------------------------


@shard_indices.right
def as_columns_of_a_table(n, world, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    order = torch.tensor(order_of(n, seed + epoch, shuffle))
    rounds = n // world if drop_last else -(-n // world)
    return order.repeat(world)[: rounds * world].view(rounds, world)[:, rank].tolist()


@shard_indices.right
def one_index_at_a_time(n, world, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    order = order_of(n, seed + epoch, shuffle)
    mine = []
    place = rank
    while place < n or (not drop_last and place - rank < n):
        if drop_last and place - rank + world > n:
            break
        mine.append(order[place % n])
        place += world
    return mine


# --- mistakes ------------------------------------------------------------------------------------


@shard_indices.mistake(
    "blocks",
    "each rank took one block of neighbors.",
    fix="Rank r takes the rows at places r, r + {ranks}, and so on: order[rank::world_size].",
)
def one_block_each(n, world, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    order = fit(order_of(n, seed + epoch, shuffle), world, drop_last)
    size = len(order) // world
    return order[rank * size : (rank + 1) * size]


@shard_indices.mistake(
    "whole_order",
    "every rank got all rows, so all ranks do the same work.",
    fix="Rank r takes the rows at places r, r + {ranks}, and so on: order[rank::world_size].",
)
def all_rows_on_every_rank(n, world, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    return fit(order_of(n, seed + epoch, shuffle), world, drop_last)


@shard_indices.mistake(
    "not_filled_up",
    "the order was not filled up: some ranks have one row less, and the others wait for them.",
    fix="Fill the order up from its own beginning, to a length that {ranks} divides.",
)
def ranks_with_different_numbers(n, world, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    return cut(order_of(n, seed + epoch, shuffle), world, drop_last)[rank::world]


@shard_indices.mistake(
    "filled_once",
    "the order was filled up only once, which is too short with fewer rows than ranks.",
    fix="Continue from the beginning again, as often as needed.",
)
def fills_up_once(n, world, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    order = order_of(n, seed + epoch, shuffle)
    order = cut(order, world, True) if drop_last else order + order[: -n % world]
    return order[rank::world]


@shard_indices.mistake(
    "filled_up_too_far",
    "the order was filled up although {ranks} divides {rows}.",
    fix="Fill up only if something is left over: -{rows} % {ranks} is 0.",
)
def fills_up_a_whole_round(n, world, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    order = order_of(n, seed + epoch, shuffle)
    longer = (order * (world + 1))[: n + world - n % world]
    return (cut(order, world, True) if drop_last else longer)[rank::world]


@shard_indices.mistake(
    "filled_with_first_rows",
    "the order was filled up with rows 0, 1, ... of the data set.",
    fix="Repeat the rows at the beginning of the shuffled order.",
)
def fills_up_with_rows_in_order(n, world, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    order = order_of(n, seed + epoch, shuffle)
    more = [i % n for i in range(-n % world)]
    return (cut(order, world, True) if drop_last else order + more)[rank::world]


@shard_indices.mistake(
    "drop_last_ignored",
    "drop_last has no effect: the order was filled up where rows should be left out.",
    fix="With drop_last, cut the order to a length that {ranks} divides.",
)
def never_drops(n, world, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    return fit(order_of(n, seed + epoch, shuffle), world, False)[rank::world]


@shard_indices.mistake(
    "always_dropped",
    "rows were left out although drop_last is off, so they are never trained on in this epoch.",
    fix="Without drop_last, fill the order up from its own beginning.",
)
def always_drops(n, world, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    return fit(order_of(n, seed + epoch, shuffle), world, True)[rank::world]


@shard_indices.mistake(
    "all_dropped",
    "drop_last left out all {rows} rows, because {rows} % {ranks} is 0, and order[:-0] is empty.",
    fix="order[: {rows} // {ranks} * {ranks}] is right whether anything is left over or not.",
)
def cuts_off_minus_zero(n, world, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    order = order_of(n, seed + epoch, shuffle)
    return (order[: -(n % world)] if drop_last else fit(order, world, False))[rank::world]


@shard_indices.mistake(
    "seed_by_rank",
    "the rank is in the seed, so every rank has another order, and rows come twice or never.",
    fix="The seed is seed + epoch, the same on all ranks.",
)
def another_seed_on_every_rank(n, world, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    return fit(order_of(n, seed + epoch + rank, shuffle), world, drop_last)[rank::world]


@shard_indices.mistake(
    "epoch_ignored",
    "the epoch is not in the seed, so every epoch has the same order.",
    fix="The generator's seed is seed + epoch.",
)
def forgets_the_epoch(n, world, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    return fit(order_of(n, seed, shuffle), world, drop_last)[rank::world]


@shard_indices.mistake(
    "seed_ignored", "seed has no effect.", fix="The generator's seed is seed + epoch."
)
def forgets_the_seed(n, world, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    return fit(order_of(n, epoch, shuffle), world, drop_last)[rank::world]


@shard_indices.mistake(
    "never_shuffled",
    "the rows are in order although shuffle is on, as it is unless the caller says otherwise.",
    fix="Draw the order with torch.randperm and a generator whose seed is seed + epoch.",
)
def ignores_shuffle(n, world, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    return fit(list(range(n)), world, drop_last)[rank::world]


@shard_indices.mistake(
    "always_shuffled",
    "the rows are shuffled although shuffle is off.",
    fix="Draw a permutation only if shuffle is on; otherwise take range(num_samples).",
)
def shuffles_always(n, world, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    return fit(order_of(n, seed + epoch, True), world, drop_last)[rank::world]


@shard_indices.mistake(
    "shuffled_after_sharding",
    "the ranks took their rows and then shuffled them: each has the same rows in every epoch.",
    fix="Shuffle all rows first, in the same way on every rank.",
)
def shuffles_its_own_rows(n, world, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    mine = fit(list(range(n)), world, drop_last)[rank::world]
    return [mine[i] for i in order_of(len(mine), seed + epoch, shuffle)]


@shard_indices.breaks("global_generator")
def seeds_the_global_generator(n, world, rank, *, epoch, seed=0, shuffle=True, drop_last=False):
    order = list(range(n))
    if shuffle:
        torch.manual_seed(seed + epoch)
        order = torch.randperm(n).tolist()
    return fit(order, world, drop_last)[rank::world]
