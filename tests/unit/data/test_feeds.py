"""Rows in memory, divided among ranks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, TensorDataset

from multigpu.data.feeds import Batch, RowFeed, feed_for


def numbered(rows: int) -> TensorDataset:
    """Row i is (i, i): whatever a feed does, its rows can be told apart."""
    return TensorDataset(torch.arange(rows), torch.arange(rows))


def feeds(rows: int, world_size: int, **how) -> list[RowFeed]:
    return [
        RowFeed(numbered(rows), rank=rank, world_size=world_size, **how)
        for rank in range(world_size)
    ]


def real(batch: Batch) -> list[int]:
    """The rows of a batch that count."""
    return batch.targets[: batch.rows].tolist()


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(1, 60),
    world_size=st.integers(1, 8),
    batch_size=st.integers(1, 40),
    epoch=st.integers(0, 3),
)
def test_ranks_together_see_the_batches_that_one_process_sees(rows, world_size, batch_size, epoch):
    alone = RowFeed(numbered(rows), batch_size=batch_size, seed=3)
    together = feeds(rows, world_size, batch_size=batch_size, seed=3)
    steps = zip(*(feed.batches(epoch) for feed in together), strict=True)
    for whole, parts in zip(alone.batches(epoch), steps, strict=True):
        assert [row for part in parts for row in real(part)] == real(whole)
        assert {part.global_rows for part in parts} == {whole.rows}
        counts = [part.rows for part in parts]
        assert max(counts) - min(counts) <= 1
        assert sum(part.weight(world_size) for part in parts) == pytest.approx(world_size)


def test_a_rank_without_rows_gets_a_row_that_does_not_count():
    last = [list(feed.batches(0))[-1] for feed in feeds(9, 3, batch_size=8)]
    assert [batch.rows for batch in last] == [1, 0, 0]
    assert [len(batch.inputs) for batch in last] == [1, 1, 1]
    assert [batch.weight(3) for batch in last] == [3, 0, 0]


def test_epochs_and_seeds_give_other_orders_and_the_same_ones_again():
    def order(seed, epoch):
        return RowFeed(numbered(40), batch_size=8, seed=seed).order(epoch).tolist()

    orders = [order(seed, epoch) for seed in range(3) for epoch in range(3)]
    assert len({tuple(one) for one in orders}) == 9
    assert order(1, 2) == order(1, 2)


@pytest.mark.parametrize("start", [0, 4, 5])
def test_an_epoch_can_be_taken_up_at_any_step(start):
    feed = RowFeed(numbered(23), batch_size=5, rank=1, world_size=2)
    whole = [real(batch) for batch in feed.batches(2)]
    assert [real(batch) for batch in feed.batches(2, start=start)] == whole[start:]


def test_torchs_random_numbers_are_left_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    list(RowFeed(numbered(9), batch_size=2).batches(0))
    assert torch.equal(torch.get_rng_state(), before)


class Pairs(Dataset):
    """A data set that knows one row at a time, and gives its inputs by name."""

    def __len__(self):
        return 7

    def __getitem__(self, index):
        return {"left": torch.full((2,), index), "right": torch.tensor(index)}, index


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_any_map_style_data_set_are_put_together(workers):
    feed = RowFeed(Pairs(), batch_size=4, shuffle=False, workers=workers)
    first, second = feed.batches(0)
    assert first.inputs["left"].tolist() == [[i, i] for i in range(4)]
    assert second.inputs["right"].tolist() == second.targets.tolist() == [4, 5, 6]


@pytest.mark.parametrize("count", [1, 3, 9])
def test_the_parts_of_a_batch_are_the_batch(count):
    inputs = {"a": torch.arange(10).view(5, 2), "b": (torch.arange(5),)}
    whole = Batch(inputs, torch.arange(5), rows=5, global_rows=11)
    parts = whole.parts(count)
    assert len(parts) == min(count, 5)
    assert [row for part in parts for row in part.targets.tolist()] == [0, 1, 2, 3, 4]
    assert all(torch.equal(part.inputs["b"][0], part.targets) for part in parts)
    assert sum(part.weight(4) for part in parts) == pytest.approx(whole.weight(4))
    assert all(part.rows == len(part.targets) > 0 for part in parts)
    several = Batch(torch.zeros(6, 1), (torch.zeros(6), torch.zeros(6)), rows=6, global_rows=6)
    assert sum(part.rows for part in several.parts(count)) == 6


class Stream(IterableDataset):
    """Ten rows, which begin with another one in each epoch."""

    first = 0

    def __iter__(self):
        return iter([(torch.tensor(row % 10),) * 2 for row in range(self.first, self.first + 10)])

    def __len__(self):
        return 10

    def set_epoch(self, epoch):
        self.first = epoch


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_rows_that_can_only_be_iterated_are_divided_as_rows_in_memory_are(world_size, drop_last):
    def batches(data, rank, start):
        how = {"batch_size": 4, "rank": rank, "world_size": world_size, "drop_last": drop_last}
        return [
            (batch.inputs.tolist(), real(batch), batch.rows, batch.global_rows)
            for batch in feed_for(data, **how, shuffle=False).batches(0, start=start)
        ]

    for rank in range(world_size):
        for start in (0, 2):
            assert batches(Stream(), rank, start) == batches(numbered(10), rank, start)


def test_a_stream_is_told_the_epoch():
    feed = feed_for(DataLoader(Stream(), batch_size=2), batch_size=4)
    assert [real(batch) for batch in feed.batches(3)] == [[3, 4, 5, 6], [7, 8, 9, 0], [1, 2]]


class Unknown(IterableDataset):
    def __iter__(self):
        return iter([])


class Short(Stream):
    def __len__(self):
        return 11


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        (iter([]), TypeError, "IterableDataset"),
        (Unknown(), TypeError, "__len__"),
        (Short(), ValueError, "11 rows .* ended after 10"),
        (DataLoader(Stream(), num_workers=2), ValueError, "workers=2"),
    ],
)
def test_rows_that_cannot_be_divided_are_refused(data, error, said):
    with pytest.raises(error, match=said):
        list(feed_for(data, batch_size=4).batches(0))


def test_a_data_loader_gives_its_rows_its_collate_fn_and_its_workers():
    loader = DataLoader(numbered(7), batch_size=3, shuffle=True, collate_fn=tenfold, num_workers=2)
    feed = feed_for(loader, batch_size=4, shuffle=False)
    assert feed.workers == 2
    assert [real(batch) for batch in feed.batches(0)] == [[0, 10, 20, 30], [40, 50, 60]]
    assert feed_for(DataLoader(numbered(7)), batch_size=4).collate_fn is None  # PyTorch's own


def tenfold(rows):
    inputs, targets = zip(*rows, strict=True)
    return torch.stack(inputs), 10 * torch.stack(targets)


def test_a_data_loader_that_makes_its_own_batches_is_refused():
    sampler = BatchSampler(range(4), batch_size=2, drop_last=False)
    for loader in (
        DataLoader(numbered(4), batch_sampler=sampler),
        DataLoader(Stream(), batch_size=None),
    ):
        with pytest.raises(ValueError, match=r"batch_sampler.*Give the loader's dataset"):
            feed_for(loader, batch_size=2)


def test_the_labels_of_a_dict_are_the_targets_and_remain_among_the_inputs():
    rows = [{"ids": torch.tensor([i, i]), "labels": i} for i in range(5)]
    [batch] = feed_for(rows, batch_size=5, shuffle=False).batches(0)
    assert batch.targets.tolist() == batch.inputs["labels"].tolist() == [0, 1, 2, 3, 4]
    parts = batch.parts(2)
    assert [part.inputs["ids"][:, 0].tolist() for part in parts] == [[0, 1, 2], [3, 4]]
    assert [part.inputs["labels"].tolist() for part in parts] == [[0, 1, 2], [3, 4]]
    with pytest.raises(TypeError, match=r"dict of ids: the targets must be 'labels'"):
        next(feed_for([{"ids": torch.zeros(2)}], batch_size=1).batches(0))


def test_a_list_is_divided_by_rows_or_refused():
    texts = Batch({"text": list("abc"), "x": torch.ones(3)}, torch.ones(3), rows=3, global_rows=3)
    assert [part.inputs["text"] for part in texts.parts(2)] == [["a", "b"], ["c"]]
    images = [torch.ones(3, 4)] * 2
    with pytest.raises(ValueError, match="cannot be divided by rows"):
        Batch(images, torch.ones(2), rows=2, global_rows=2).parts(2)


class Scaled(TensorDataset):
    """Each row has a factor of its own, which is looked up by the row's number."""

    def __getitem__(self, index):
        (row,) = super().__getitem__(index)
        return row * [1, 10, 100, 1000][index], row


def test_a_subclass_of_tensor_dataset_gets_one_index_at_a_time():
    [batch] = feed_for(Scaled(torch.arange(4)), batch_size=4, shuffle=False).batches(0)
    assert batch.inputs.tolist() == [0, 10, 200, 3000]
