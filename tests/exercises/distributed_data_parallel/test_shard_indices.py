"""Checks of ``distributed_data_parallel.shard_indices``: the indices of DistributedSampler."""

from itertools import product

from multigpu.checking import exercise

from .explain_shard_indices import Report

SAMPLES = (1, 2, 3, 5, 7, 8, 12, 21)


def drive(submission, devices, calls):
    """The result of every call: (positional arguments, keyword arguments)."""
    return [submission.shard_indices(*places, **named) for places, named in calls]


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
    """Worlds of 1 to 8 ranks, with all options."""
    calls = [
        call
        for n, w, drop, (shuffle, epoch, seed) in product(
            SAMPLES, range(1, 9), (False, True), [(False, 2, 5), (True, 0, 0), (True, 3, 11)]
        )
        for call in every_rank(n, w, epoch=epoch, seed=seed, shuffle=shuffle, drop_last=drop)
    ]
    check(learner, calls)
