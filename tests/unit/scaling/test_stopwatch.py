"""The stopwatch gives the Trainer the very same batches, and times only what it shall."""

import itertools

import pytest
import torch
from torch.utils.data import TensorDataset

from multigpu.data.feeds import feed_for
from multigpu.scaling import measuring
from multigpu.scaling.measuring import Stopwatch

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


def test_the_end_is_noted_when_nobody_asks_for_more(clock):
    watch = Stopwatch(DATA, steps=2, warmup=0)
    batches = watch.feed(**HOW).batches(0)
    for _ in range(2):
        next(batches)
        clock(4.0)
    batches.close()  # as a loop does that breaks
    assert watch.seconds == 4.0
    assert len(watch.moments) == 3


def test_a_rank_gets_its_share_of_each_batch():
    shares = [
        next(iter(Stopwatch(DATA, steps=1, warmup=0).feed(**HOW | {"rank": rank, "world_size": 2})
                  .batches(0)))
        for rank in range(2)
    ]  # fmt: skip
    whole = next(iter(feed_for(DATA, **HOW).batches(0)))
    assert torch.cat([share.inputs for share in shares]).equal(whole.inputs)


def test_rows_that_fill_no_batch_are_refused_instead_of_waited_for():
    with pytest.raises(ValueError, match=r"\b10 rows\b.*\b16\b.*\b10\b"):
        Stopwatch(DATA, steps=1, warmup=0).feed(**HOW | {"batch_size": 16})


@pytest.mark.parametrize(("steps", "warmup"), [(0, 1), (1, -1)])
def test_at_least_one_step_is_measured(steps, warmup):
    with pytest.raises(ValueError, match=f"steps={steps}, warmup={warmup}"):
        Stopwatch(DATA, steps=steps, warmup=warmup)
