"""The batches of a rank: one per step, with the same number of steps on every rank.

A `Feed` belongs to one rank. `RowFeed` takes its rows from memory, `StreamFeed` from an iterator,
and that of a `PartitionedFile` (parquet.py) reads row groups of a file. A training loop does not
see the difference.

Every mode and every world size sees the same batches: global batch b of an epoch is rows b·B to
(b+1)·B of one shuffled order, which all ranks draw from the same seed. Each rank takes its share of
it, so training on four ranks computes the same as training on one. (`DistributedSampler` divides
the whole epoch first, so that the batches differ.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

Collate = Callable[[list[Any]], Any]
LABELS = "labels"  # the targets among the inputs by name, as Hugging Face's data sets call them


@dataclass(frozen=True)
class Batch:
    """What one rank computes in one step. All tensors are on the CPU."""

    inputs: Any  # a tensor (rows, ...), or a tuple or dict of such
    targets: Any  # a tensor (rows, ...)
    rows: int
    """This rank's rows. 0: `inputs` and `targets` hold one filler row, so that the rank can run
    forward and backward with the others; its loss has the weight 0."""
    global_rows: int
    """The rows of all ranks in this step; the same number on every rank."""

    def weight(self, world_size: int) -> float:
        """What this rank's mean loss is multiplied by before DDP takes the mean over ranks.

        (1/n)·Σ n·(rows/global_rows)·mean_of_the_rank is the mean over all rows of the step.
        """
        return world_size * self.rows / self.global_rows

    def parts(self, count: int) -> list[Batch]:
        """This batch in up to `count` parts of nearly equal size, none of them empty."""
        if count == 1 or self.rows < 2:
            return [self]
        count = min(count, self.rows)
        rows = self.rows
        values, structure = tree_flatten(
            (self.inputs, self.targets), is_leaf=lambda value: _is_column(value, rows)
        )
        split = zip(*(_pieces(value, count, rows) for value in values), strict=True)
        pairs = [tree_unflatten(part, structure) for part in split]
        return [
            Batch(inputs, targets, rows=rows_of(targets), global_rows=self.global_rows)
            for inputs, targets in pairs
        ]


def _is_column(value: Any, rows: int) -> bool:
    """Whether this is a list that has something other than a tensor for each row, such as texts."""
    is_list = isinstance(value, list) and len(value) == rows
    return is_list and not any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))


def _pieces(value: Any, count: int, rows: int) -> Sequence[Any]:
    """`value` cut into `count` pieces of its rows; what has no rows goes to each of them.

    Raises ValueError for a tensor of another length, such as one image of a list of images.
    """
    if isinstance(value, Tensor) and value.dim():
        if len(value) != rows:
            raise ValueError(
                f"a batch of {rows} rows has a tensor of the shape {tuple(value.shape)}, which "
                "cannot be divided by rows. Leave accumulation_steps and micro_batches at 1, or "
                "make tensors with a first dimension of rows in collate_fn."
            )
        return value.tensor_split(count)
    if _is_column(value, rows):
        cuts = torch.arange(rows).tensor_split(count)
        return [[value[i] for i in part.tolist()] for part in cuts]
    return [value] * count


def rows_of(targets: Any) -> int:
    """The rows of a tensor, or of the tensors in a tuple or dict."""
    return len(tree_leaves(targets)[0])


def inputs_and_targets(items: Any) -> tuple[Any, Any]:
    """A loaded batch divided into the model's inputs and the targets.  Raises TypeError.

    In a dict the targets are "labels". They also remain among the inputs, because the models of
    Hugging Face compute their loss from them.
    """
    if isinstance(items, Mapping):
        if LABELS not in items:
            names = ", ".join(map(str, items))
            raise TypeError(
                f"an item of the data set is a dict of {names}: the targets must be {LABELS!r}. "
                "Rename them, or give (inputs, target) pairs."
            )
        return dict(items), items[LABELS]
    if not isinstance(items, tuple | list) or len(items) < 2:
        count = f" of {len(items)}" if isinstance(items, tuple | list) else ""
        raise TypeError(
            f"an item of the data set is a {type(items).__name__}{count}: give (inputs, target) "
            f"pairs, where the inputs may be a dict, or dicts with {LABELS!r}."
        )
    *inputs, targets = items
    return inputs[0] if len(inputs) == 1 else tuple(inputs), targets


class Feed(Protocol):
    """The batches of one rank."""

    @property
    def num_rows(self) -> int:
        """Rows of the whole data set, those of the other ranks included."""

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch; the same number on every rank."""

    def batches(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from step `start` on, the same ones as in an epoch begun at 0."""


@runtime_checkable
class FeedSource(Protocol):
    """Data that divides itself among ranks, such as `PartitionedFile`."""

    def feed(
        self, *, batch_size: int, rank: int, world_size: int, seed: int, shuffle: bool
    ) -> Feed:
        """The feed of one rank; `batch_size` counts the rows of all ranks in a step."""


def feed_for(
    data: Any,
    *,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    seed: int = 0,
    shuffle: bool = True,
    workers: int = 0,
    pin_memory: bool = False,
    collate_fn: Collate | None = None,
    drop_last: bool = False,
) -> Feed:
    """The feed of one rank from `data`: a `FeedSource`, a data set, or a DataLoader.

    A DataLoader gives its data set, its collate_fn and its number of workers. Its sampler and its
    batch size are replaced, because the rows must be divided among the ranks. `collate_fn` makes a
    batch from a list of rows. Raises TypeError for other data, ValueError for other batches.
    """
    how = {"batch_size": batch_size, "rank": rank, "world_size": world_size, "seed": seed}
    if isinstance(data, DataLoader):
        collate_fn, workers = collate_fn or data.collate_fn, workers or data.num_workers
        if data.batch_size is None:
            raise ValueError(
                "a DataLoader with its own batch_sampler, or with batch_size=None, decides which "
                "rows form a batch, but here TrainConfig(batch_size=...) does, for all ranks "
                "together. Give the loader's dataset, and collate_fn= if necessary."
            )
        data = data.dataset
    if isinstance(data, FeedSource):
        without = {"collate_fn": collate_fn, "drop_last": drop_last, "workers": workers}
        for what, given in without.items():
            if given:
                raise ValueError(
                    f"{what}={given} with a {type(data).__name__}: it loads its own rows and makes "
                    f"its own batches. Leave {what} out."
                )
        return data.feed(**how, shuffle=shuffle)
    if isinstance(data, IterableDataset):
        if workers:
            raise ValueError(
                f"workers={workers}: each of them would read all rows of an IterableDataset. "
                "Leave workers out."
            )
        del how["seed"]  # the data set decides the order
        return StreamFeed(data, **how, collate_fn=collate_fn, drop_last=drop_last)
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise TypeError(
            f"{type(data).__name__} is not data to train on: give a data set with len() and "
            "data[i] -> (inputs, target), a PartitionedFile, or an IterableDataset with len()."
        )
    return RowFeed(
        data,
        **how,
        shuffle=shuffle,
        workers=workers,
        pin_memory=pin_memory,
        collate_fn=None if collate_fn is default_collate else collate_fn,
        drop_last=drop_last,
    )


@dataclass(frozen=True, eq=False)
class DataSetFeed:
    """What the feeds of a data set have in common: a global batch is a number of its rows."""

    dataset: Any
    _: KW_ONLY
    batch_size: int
    """the rows of all ranks in a step"""
    rank: int = 0
    world_size: int = 1
    collate_fn: Collate | None = None
    """makes a batch from a list of rows; default: PyTorch's"""
    drop_last: bool = False
    """leave out the last batch of an epoch if it has fewer rows"""

    def __post_init__(self) -> None:
        if not self.num_rows:
            raise ValueError("the data set has no rows")
        if not self.steps_per_epoch:
            raise ValueError(
                f"drop_last with {self.num_rows} rows and batch_size={self.batch_size} leaves no "
                f"batch. Use a batch_size of at most {self.num_rows}."
            )

    @property
    def num_rows(self) -> int:
        return len(self.dataset)

    @property
    def steps_per_epoch(self) -> int:
        whole = self.num_rows // self.batch_size
        return whole if self.drop_last else math.ceil(self.num_rows / self.batch_size)


@dataclass(frozen=True, eq=False)
class RowFeed(DataSetFeed):
    """The batches of one rank from a map-style data set.

    Its items are `(inputs, target)`, or `(first, second, ..., target)`: then the batch's inputs
    are a tuple. Or they are dicts, with the targets as "labels".
    """

    _: KW_ONLY
    seed: int = 0
    shuffle: bool = True
    workers: int = 0
    """processes of the DataLoader"""
    pin_memory: bool = False
    """put batches where a GPU can fetch them while the program continues"""

    def order(self, epoch: int) -> torch.Tensor:
        """The order of all rows in an epoch, the same on every rank: (num_rows,)."""
        if not self.shuffle:
            return torch.arange(self.num_rows)
        return torch.randperm(self.num_rows, generator=_mixed(self.seed, epoch))

    def batches(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """This rank's share of each global batch, from step `start` on."""
        global_batches = torch.split(self.order(epoch), self.batch_size)
        global_batches = global_batches[start : self.steps_per_epoch]
        # Contiguous shares whose lengths differ by one row at most: 10 rows on 4 ranks are 3, 3, 2
        # and 2. A rank may get none: 3 rows on 4 ranks are 1, 1, 1 and 0.
        shares = [rows.tensor_split(self.world_size)[self.rank] for rows in global_batches]
        filled = [  # a rank without rows computes another rank's row, which does not count
            share if len(share) else rows[:1]
            for rows, share in zip(global_batches, shares, strict=True)
        ]
        if type(self.dataset) is TensorDataset and self.collate_fn is None:
            # It takes all indices of a batch at once. A subclass may take only one.
            how: dict[str, Any] = {"sampler": filled, "batch_size": None}
        else:
            lists = [rows.tolist() for rows in filled]
            how = {"batch_sampler": lists, "collate_fn": self.collate_fn}
        loader = DataLoader(
            self.dataset,
            num_workers=self.workers,
            pin_memory=self.pin_memory,
            # Does not change torch's random state. Workers that transform rows at random draw other
            # numbers in each epoch, on each rank.
            generator=_mixed(self.seed, epoch, start, self.rank),
            **how,
        )
        for rows, share, items in zip(global_batches, shares, loader, strict=True):
            inputs, targets = inputs_and_targets(items)
            yield Batch(inputs, targets, rows=len(share), global_rows=len(rows))


@dataclass(frozen=True, eq=False)
class StreamFeed(DataSetFeed):
    """The batches of one rank from rows that can only be iterated, such as those of many files.

    `dataset` is an `IterableDataset` whose `len()` is the number of rows in an epoch. Every rank
    reads all rows and keeps its share of each batch, so all world sizes see the same batches. (Of a
    `PartitionedFile` a rank reads its own row groups only.) The rows come in the order of the data
    set; if it has `set_epoch(epoch)`, that is called before each epoch.
    """

    def __post_init__(self) -> None:
        if not hasattr(self.dataset, "__len__"):
            raise TypeError(
                f"{type(self.dataset).__name__} does not say how many rows an epoch has, and all "
                "ranks must run the same number of steps: give it a method __len__."
            )
        super().__post_init__()

    def batches(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """This rank's share of each global batch; the rows before step `start` are read, too."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)
        collate, stream = self.collate_fn or default_collate, iter(self.dataset)
        for step in range(self.steps_per_epoch):
            before = step * self.batch_size
            expected = min(self.batch_size, self.num_rows - before)
            rows = list(itertools.islice(stream, expected))
            if len(rows) < expected:
                raise ValueError(
                    f"{type(self.dataset).__name__} has {self.num_rows} rows by its len(), but "
                    f"ended after {before + len(rows)}"
                )
            share = torch.arange(expected).tensor_split(self.world_size)[self.rank]
            if step >= start:
                inputs, targets = inputs_and_targets(collate([rows[i] for i in share] or rows[:1]))
                yield Batch(inputs, targets, rows=len(share), global_rows=expected)


def _mixed(*numbers: int) -> torch.Generator:
    """A generator for all of these numbers: seed 0 in epoch 1 is not seed 1 in epoch 0."""
    seed = 0
    for number in numbers:
        seed = (seed * 1_000_003 + number) % 2**63
    return torch.Generator().manual_seed(seed)
