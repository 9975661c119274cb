"""The batches of a rank: one per step, with the same number of steps on every rank.

A `Feed` belongs to one rank. `RowFeed` takes its rows from memory; that of a `PartitionedFile`
(parquet.py) reads row groups of a file. A training loop does not see the difference.

Every mode and every world size sees the same batches: global batch b of an epoch is rows b·B to
(b+1)·B of one shuffled order, which all ranks draw from the same seed. Each rank takes its share of
it, so training on four ranks computes the same as training on one. (`DistributedSampler` divides
the whole epoch first, so that the batches differ.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.data import DataLoader, TensorDataset


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
        tensors, structure = tree_flatten((self.inputs, self.targets))
        split = zip(*(tensor.tensor_split(count) for tensor in tensors), strict=True)
        pairs = [tree_unflatten(part, structure) for part in split]
        return [
            Batch(inputs, targets, rows=rows_of(targets), global_rows=self.global_rows)
            for inputs, targets in pairs
        ]


def rows_of(targets: Any) -> int:
    """The rows of a tensor, or of the tensors in a tuple or dict."""
    return len(tree_leaves(targets)[0])


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
) -> Feed:
    """The feed of one rank from `data`: a `FeedSource`, or a map-style data set of pairs.

    Raises TypeError for anything else.
    """
    how = {"batch_size": batch_size, "rank": rank, "world_size": world_size, "seed": seed}
    if isinstance(data, FeedSource):
        if workers:
            raise ValueError(
                f"workers={workers} with a {type(data).__name__}: it loads its own rows, a "
                "few row groups at a time. Leave workers at 0."
            )
        return data.feed(**how, shuffle=shuffle)
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise TypeError(
            f"{type(data).__name__} is not data to train on: give a data set with len() and "
            "data[i] -> (inputs, target), or a PartitionedFile. A DataLoader has already "
            "divided its rows into batches: pass its dataset."
        )
    return RowFeed(data, **how, shuffle=shuffle, workers=workers, pin_memory=pin_memory)


@dataclass(frozen=True, eq=False)
class RowFeed:
    """The batches of one rank from a map-style data set.

    Its items are `(inputs, target)`, or `(first, second, ..., target)`: then the batch's inputs
    are a tuple.
    """

    dataset: Any
    _: KW_ONLY
    batch_size: int
    """the rows of all ranks in a step"""
    rank: int = 0
    world_size: int = 1
    seed: int = 0
    shuffle: bool = True
    workers: int = 0
    """processes of the DataLoader"""
    pin_memory: bool = False
    """put batches where a GPU can fetch them while the program continues"""

    def __post_init__(self) -> None:
        if not len(self.dataset):
            raise ValueError("the data set has no rows")

    @property
    def num_rows(self) -> int:
        return len(self.dataset)

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.num_rows / self.batch_size)

    def order(self, epoch: int) -> torch.Tensor:
        """The order of all rows in an epoch, the same on every rank: (num_rows,)."""
        if not self.shuffle:
            return torch.arange(self.num_rows)
        return torch.randperm(self.num_rows, generator=_mixed(self.seed, epoch))

    def batches(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """This rank's share of each global batch, from step `start` on."""
        global_batches = torch.split(self.order(epoch), self.batch_size)[start:]
        # Contiguous shares whose lengths differ by one row at most: 10 rows on 4 ranks are 3, 3, 2
        # and 2. A rank may get none: 3 rows on 4 ranks are 1, 1, 1 and 0.
        shares = [rows.tensor_split(self.world_size)[self.rank] for rows in global_batches]
        filled = [  # a rank without rows computes one of the others', for nothing
            share if len(share) else rows[:1]
            for rows, share in zip(global_batches, shares, strict=True)
        ]
        if isinstance(self.dataset, TensorDataset):  # takes all indices of a batch at once
            how: dict[str, Any] = {"sampler": filled, "batch_size": None}
        else:
            how = {"batch_sampler": [rows.tolist() for rows in filled]}
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
            if not isinstance(items, tuple | list) or len(items) < 2:
                count = f" of {len(items)}" if isinstance(items, tuple | list) else ""
                raise TypeError(
                    f"an item of the data set is a {type(items).__name__}{count}: "
                    "give (inputs, target) pairs; the inputs may be a dict."
                )
            *inputs, targets = items
            yield Batch(
                inputs=inputs[0] if len(inputs) == 1 else tuple(inputs),
                targets=targets,
                rows=len(share),
                global_rows=len(rows),
            )


def _mixed(*numbers: int) -> torch.Generator:
    """A generator for all of these numbers: seed 0 in epoch 1 is not seed 1 in epoch 0."""
    seed = 0
    for number in numbers:
        seed = (seed * 1_000_003 + number) % 2**63
    return torch.Generator().manual_seed(seed)
