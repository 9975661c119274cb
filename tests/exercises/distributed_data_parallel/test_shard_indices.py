"""Checks of ``distributed_data_parallel.shard_indices``: the indices of DistributedSampler."""

from itertools import product

import torch

from multigpu.checking import exercise

from .explain_shard_indices import Report

SIZES = [*product((1, 2, 3, 5, 7, 8, 12, 21), range(1, 9)), (1000, 12)]  # rows, ranks


def drive(submission, devices, calls):
    """The result of every call: (positional arguments, keyword arguments).

    ``drew`` are the numbers of the calls after which torch's global generator was another.
    """
    results, drew = [], []
    for i, (places, named) in enumerate(calls):
        before = torch.get_rng_state()
        results.append(submission.shard_indices(*places, **named))
        if not torch.equal(torch.get_rng_state(), before):
            drew.append(i)
    return {"rows": results, "drew": drew}


def every_rank(num_samples, world_size, **named):
    return [((num_samples, world_size, rank), named) for rank in range(world_size)]


def check(learner, calls):
    answer = learner.run(drive, calls, gpus=0)
    Report(calls, answer).examine()


@exercise("distributed_data_parallel.shard_indices")
def test_rows_in_order(learner):
    """Sizes that divide, and sizes that must be filled up."""
    sizes = [(6, 2), (8, 4), (5, 2), (7, 3), (768, 5), (9, 1)]
    check(learner, [c for n, w in sizes for c in every_rank(n, w, epoch=0, shuffle=False)])


@exercise("distributed_data_parallel.shard_indices")
def test_rows_left_out(learner):
    sizes = [(6, 2), (5, 2), (7, 3), (768, 5), (3, 4), (9, 1)]
    named = {"epoch": 1, "shuffle": False, "drop_last": True}
    check(learner, [c for n, w in sizes for c in every_rank(n, w, **named)])


@exercise("distributed_data_parallel.shard_indices")
def test_fewer_rows_than_ranks(learner):
    sizes = [(3, 4), (2, 5), (1, 8), (3, 8)]
    check(learner, [c for n, w in sizes for c in every_rank(n, w, epoch=0, shuffle=False)])


@exercise("distributed_data_parallel.shard_indices")
def test_shuffled_rows(learner):
    """Shuffling is what you get without asking; every epoch and every seed has its own order."""
    options = [{"epoch": epoch} for epoch in (0, 1, 2)]
    options += [{"epoch": epoch, "seed": seed} for epoch, seed in ((0, 3), (1, 3), (2, 2), (5, 41))]
    sizes = [(12, 3), (14, 4), (9, 1)]
    check(learner, [c for named in options for n, w in sizes for c in every_rank(n, w, **named)])


@exercise("distributed_data_parallel.shard_indices")
def test_all_combinations(learner):
    """Worlds of 1 to 8 ranks and a larger one, with all options."""
    calls = [
        call
        for (n, w), drop, (shuffle, epoch, seed) in product(
            SIZES, (False, True), [(False, 2, 5), (True, 0, 0), (True, 3, 11)]
        )
        for call in every_rank(n, w, epoch=epoch, seed=seed, shuffle=shuffle, drop_last=drop)
    ]
    check(learner, calls)
