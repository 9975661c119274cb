"""Ranks read their row groups of one file: each row once, in as many batches on every rank."""

import itertools
import re
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multigpu.data import PartitionedFile
from multigpu.data.feeds import feed_for
from multigpu.data.parquet import PartitionReader

pytestmark = pytest.mark.filterwarnings("ignore:.*multigpu partition:UserWarning")


def feeds(data, world_size, **how):
    how = {"batch_size": 7, "seed": 0, "shuffle": True} | how
    return [feed_for(data, rank=rank, world_size=world_size, **how) for rank in range(world_size)]


def real(batches):
    """The numbers of the rows that count, batch by batch."""
    return [batch.inputs[: batch.rows, 0].tolist() for batch in batches]


def check_epoch(together, epoch):
    """What holds for any file, any ranks and any batch. Returns the rows, rank by rank."""
    batches = [list(feed.batches(epoch)) for feed in together]
    rows, size = together[0].num_rows, together[0].batch_size
    assert {len(steps) for steps in batches} == {together[0].steps_per_epoch} == {-(-rows // size)}
    given_rows = [real(steps) for steps in batches]
    flat = [list(itertools.chain(*steps)) for steps in given_rows]
    assert sorted(itertools.chain(*flat)) == list(range(rows))
    assert all(flat) or rows < len(together)
    for step, parts in enumerate(zip(*batches, strict=True)):
        assert {part.global_rows for part in parts} == {sum(part.rows for part in parts)}
        assert parts[0].global_rows == min(size, rows - step * size)
        for part in parts:
            assert len(part.targets) == len(part.inputs) == max(part.rows, 1)
            assert torch.equal(part.targets, 3 * part.inputs[:, 0])
    return given_rows


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=16).filter(any),
    world_size=st.integers(1, 8),
    batch_size=st.integers(1, 60),
    epoch=st.integers(0, 3),
    shuffle=st.booleans(),
    mix=st.integers(1, 4),
    start=st.integers(0, 12),
)
def test_each_row_comes_once_in_as_many_batches_on_every_rank(
    numbers, sizes, world_size, batch_size, epoch, shuffle, mix, start
):
    with tempfile.TemporaryDirectory() as folder:
        path = numbers(Path(folder) / "numbers.parquet", sizes)
        data = PartitionedFile(path, inputs=["number"], target="target", mix=mix)
        together = feeds(data, world_size, batch_size=batch_size, shuffle=shuffle)
        rows = check_epoch(together, epoch)
        for feed, steps in zip(together, rows, strict=True):
            assert real(feed.batches(epoch, start=start)) == steps[start:]


def test_epochs_differ_and_a_seed_gives_the_same_order_again(make):
    data = make([20, 20, 20])
    orders = [
        tuple(itertools.chain(*real(feeds(data, 2, seed=seed)[0].batches(epoch))))
        for seed in range(3)
        for epoch in range(3)
    ]
    assert len(set(orders)) == 9
    assert tuple(itertools.chain(*real(feeds(data, 2, seed=1)[0].batches(2)))) == orders[5]


@pytest.mark.parametrize("mix", [1, 2])
def test_the_rows_of_mix_row_groups_are_mixed(make, mix):
    [feed] = feeds(make([10] * 8, mix=mix), 1, batch_size=10 * mix)
    for batch in real(feed.batches(0)):
        assert len({number // 10 for number in batch}) == mix
        assert batch != sorted(batch)


@pytest.fixture
def read(monkeypatch):
    """The row groups that were read, in order, and the most rows that were read at once."""
    pieces, original = [], PartitionReader.read

    def recorded(self, wanted):
        pieces.append(list(wanted))
        return original(self, wanted)

    monkeypatch.setattr(PartitionReader, "read", recorded)
    return pieces


def test_a_rank_reads_its_own_row_groups_once_and_a_few_at_a_time(make, read):
    groups = []
    for feed in feeds(make([10] * 12, mix=2), 3, batch_size=12):
        read.clear()
        list(feed.batches(0))
        assert [len(block) for block in read] == [2, 2]
        groups.append({piece.group for block in read for piece in block})
    assert sorted(itertools.chain(*groups)) == list(range(12))


def test_what_was_used_up_is_not_read_again_when_training_goes_on(make, read):
    [feed] = feeds(make([10] * 6, mix=1), 1, batch_size=4)
    list(feed.batches(0, start=12))  # 48 of 60 rows were given
    assert len(read) == 2
    read.clear()
    assert list(feed.batches(0, start=15)) == list(feed.batches(0, start=99)) == []
    assert not read


def test_integers_stay_integers_and_other_inputs_become_float32(make):
    [batch] = feeds(make([4]), 1, shuffle=False)[0].batches(0)
    assert (batch.inputs.dtype, batch.targets.dtype) == (torch.int64, torch.int64)
    mixed = make([4], inputs=["half", "number"])
    [batch] = feeds(mixed, 1, shuffle=False)[0].batches(0)
    assert batch.inputs.dtype == torch.float32
    assert batch.inputs.tolist() == [[i + 0.5, i] for i in range(4)]


def said(data, world_size, rank=0):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data.feed(batch_size=8, rank=rank, world_size=world_size)
    return [str(warning.message) for warning in caught]


def test_fewer_row_groups_than_ranks_are_cut_and_rank_0_says_what_to_do(make):
    data = make([30, 30])
    [text] = said(data, 4)
    assert re.search(r"\b2 row groups\D*\b4\b", text)
    assert f"multigpu partition {data.path} --partitions 16" in text
    assert said(data, 4, rank=1) == said(data, 2) == []


def test_an_imbalance_is_shown(make):
    data = make([10] * 5)
    [text] = said(data, 4)
    assert re.search(r"\b10 to 20 rows\D*\b1\.60\b", text)
    lines = feeds(data, 4, batch_size=10)[0].describe().splitlines()
    numbers_of = [re.findall(r"\d+(?:\.\d+)?", line) for line in lines]
    assert numbers_of[1] == ["0", "2", "20", "1.60"]  # rank, row groups, rows, times the mean
    assert numbers_of[4] == ["3", "1", "10", "0.80"]
    assert numbers_of[5][:2] == ["5", "10"]  # steps, and rows of each
