"""What is run and in which order, what a step takes, and what is read from a trace."""

import itertools
import re

import pytest
import torch
from torch.utils.data import TensorDataset

from multigpu.data.feeds import feed_for
from multigpu.ranks.calls import Call
from multigpu.ranks.trace import Trace
from multigpu.scaling import measuring
from multigpu.scaling.comparison import Candidate, Machine
from multigpu.scaling.formulas import ring_bytes, sent_by_kind
from multigpu.scaling.measuring import (
    Stopwatch,
    all_reduce_share,
    bytes_between_ranks,
    candidates_of,
    first_rows,
)


@pytest.mark.parametrize(
    ("modes", "gpus", "planned", "left_out"),
    [
        (["ddp", "single"], [4, 2], ["single", "ddp on 2", "ddp on 4"], []),
        (["dp", "ddp"], [1, 2], ["dp on 2", "ddp on 1", "ddp on 2"], [Candidate("dp", 1)]),
        # Any batch will do for a pipeline of several stages.
        (["pipeline", "single"], [1, 3], ["single", "pipeline on 3"], [Candidate("pipeline", 1)]),
    ],
)
def test_single_comes_first_and_what_says_nothing_is_left_out(modes, gpus, planned, left_out):
    candidates, why = candidates_of(modes, gpus, batch_size=8)
    assert list(map(str, candidates)) == planned
    assert [*why] == left_out
    assert all("single" in reason for reason in why.values())


@pytest.mark.parametrize(
    ("modes", "gpus", "batch_size", "said"),
    [
        (["dpp"], [2], 8, r"'dpp'.*\bdp\b"),
        (["single"], [0], 8, r"\b0 GPUs\b.*\b1 to 64\b"),
        (["ddp"], [3], 128, r"\b128 rows\b.*\b3 GPUs\b.*\b126 or 129\b"),
        (["dp"], [4], 2, r"\b2 rows\b.*\b4 GPUs\b.*\b4\b"),
        (["dp"], [1], 8, r"dp on 1\b.*single"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_next_thing_to_try(
    modes, gpus, batch_size, said
):
    with pytest.raises(ValueError, match=said):
        candidates_of(modes, gpus, batch_size=batch_size)


CPU = Machine("some CPU", 2, (), "Linux", "3.11", "2.13")
ONE_GPU = Machine("some CPU", 8, ("NVIDIA H200",), "Linux", "3.11", "2.13")
FOUR_GPUS = Machine("some CPU", 64, ("NVIDIA A100",) * 4, "Linux", "3.11", "2.13")


@pytest.mark.parametrize(
    ("machine", "mode", "gpus", "said"),
    [
        (CPU, "single", 1, r"\D*CPU\D*2 cores\W*"),
        (CPU, "dp", 4, r"4 virtual\D*CPU\D*2 cores\W*"),
        (CPU, "ddp", 4, r"4 gloo\D*CPU\D*2 cores\W*"),
        (ONE_GPU, "single", 1, "1 × NVIDIA H200"),
        (ONE_GPU, "dp", 2, r"2 virtual\D*1 × NVIDIA H200\W*"),
        (ONE_GPU, "ddp", 2, r"2 gloo\D*1 × NVIDIA H200\W*"),
        (FOUR_GPUS, "dp", 2, "2 × NVIDIA A100"),
        (FOUR_GPUS, "ddp", 4, r"4 × NVIDIA A100\W*nccl\W*"),
    ],
)
def test_it_is_said_on_what_a_candidate_runs(machine, mode, gpus, said):
    assert re.fullmatch(said, machine.where(Candidate(mode, gpus)))


DATA = TensorDataset(torch.arange(10), torch.arange(10))
HOW = {"batch_size": 4, "rank": 0, "world_size": 1, "seed": 3, "shuffle": True}


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    times = []
    monkeypatch.setattr(measuring.time, "monotonic", lambda: sum(times))
    return times.append


def test_it_goes_on_in_the_next_epoch_and_leaves_out_batches_that_are_not_full():
    feed = Stopwatch(DATA, steps=4, warmup=1).feed(**HOW)
    seen = [batch.inputs.tolist() for batch in feed.batches(0)]
    plain = feed_for(DATA, **HOW)
    two_each = [itertools.islice(plain.batches(epoch), 2) for epoch in range(3)]
    expected = [batch.inputs.tolist() for epoch in two_each for batch in epoch]
    assert seen == expected[:5]
    assert feed.steps_per_epoch == 5


def test_the_warm_up_does_not_count(clock):
    watch = Stopwatch(DATA, steps=3, warmup=2)
    for took, _ in zip([50.0, 10.0, 1.0, 2.0, 3.0], watch.feed(**HOW).batches(0), strict=True):
        clock(took)
    assert watch.seconds == 2.0
    assert watch.window == (60.0, 66.0)
    assert watch.moments[1] - watch.moments[0] == 50.0


def test_a_batch_that_is_taken_as_a_sample_before_the_training_does_not_count(clock):
    watch = Stopwatch(DATA, steps=2, warmup=1)
    feed = watch.feed(**HOW)
    next(iter(feed.batches(0)))  # as a pipeline does, which measures its layers with it
    clock(100.0)
    for took, _ in zip([7.0, 1.0, 3.0], feed.batches(0), strict=True):
        clock(took)
    assert watch.seconds == 2.0
    assert watch.moments[1] - watch.moments[0] == 7.0


def test_rows_that_fill_no_batch_are_refused_instead_of_waited_for():
    with pytest.raises(ValueError, match=r"\b10 rows\b.*\b16\b.*\b10\b"):
        Stopwatch(DATA, steps=1, warmup=0).feed(**HOW | {"batch_size": 16})


def call(rank, number, begin, end, *, op="all_reduce", size=100):
    frame = {"id": number, "op": op, "via": op, "group": "0", "members": (0, 1), "nth": number,
             "bytes": size, "numel": size // 4, "thread": 1, "is_async": True, "file": "a.py",
             "line": 1, "function": "f", "time": begin}  # fmt: skip
    heard = Call.of(rank, frame)
    if end is not None:
        heard.hear({"phase": "completed", "time": end})
    return heard


def test_the_share_is_the_mean_over_ranks_and_overlapping_calls_count_once():
    within = [call(0, 1, 1.0, 3.5), call(0, 2, 2.0, 3.0), call(0, 3, 3.0, 4.0)]
    calls = [*within, call(1, 1, 1.0, 2.0)]
    trace = Trace(calls, world_size=2)
    assert all_reduce_share(trace, [(0.0, 10.0), (0.0, 10.0)]) == pytest.approx((0.3 + 0.1) / 2)


def test_only_the_window_counts_and_a_call_that_never_ends_lasts_to_its_end():
    calls = [call(0, 1, 0.0, 6.0), call(0, 2, 9.0, None), call(1, 1, 20.0, 30.0)]
    trace = Trace(calls, world_size=2)
    assert all_reduce_share(trace, [(5.0, 10.0), (5.0, 10.0)]) == pytest.approx((0.4 + 0.0) / 2)


def test_bytes_are_those_of_a_ring_per_step_of_the_window():
    early = call(0, 1, 0.0, 1.0, size=10**6)
    inside = [call(0, number, 1.0 + number, 2.0 + number, size=800) for number in (1, 2, 3, 4)]
    others = [call(1, number, 1.0 + number, 2.0 + number, size=800) for number in (1, 2, 3, 4)]
    trace = Trace([early, *inside, *others], world_size=2)
    assert bytes_between_ranks(trace, (1.5, 9.0), steps=2) == 2 * (2 - 1) * 1600


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather():
    whole, part = call(0, 1, 0.0, 1.0, size=800), call(0, 2, 0.0, 1.0, op="all_gather", size=400)
    halved = call(0, 3, 0.0, 1.0, op="reduce_scatter", size=800)
    assert ring_bytes(whole) == ring_bytes(part) + ring_bytes(halved) == 800
    trace = Trace([whole, part, halved], world_size=2)
    assert all_reduce_share(trace, [(0.0, 2.0), (0.0, 2.0)]) == pytest.approx(0.25)
    assert bytes_between_ranks(trace, (0.0, 2.0), steps=1) == 2 * 1600
    assert sent_by_kind(trace) == {"all_reduce": 800, "all_gather": 400, "reduce_scatter": 400}


def test_the_rows_to_evaluate_are_those_that_a_data_set_gives():
    class Negated(TensorDataset):
        def __getitem__(self, index):
            (row,) = super().__getitem__(index)
            return -row

    for kind, values in ((TensorDataset, [(0,), (1,)]), (Negated, [0, -1])):
        rows = first_rows(kind(torch.arange(4)), 2)
        assert [rows[i] for i in range(len(rows))] == values
