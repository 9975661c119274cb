"""What feeds a rank: one batch per step, and on every rank the same number of steps.

A `Feed` belongs to one rank. It may take its rows from memory (`rows.py`) or from the row groups
of a Parquet file (`partitions.py`); whoever trains does not see the difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten


@dataclass(frozen=True)
class Batch:
    """What one rank computes in one step. All tensors lie on the CPU."""

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
        """The batches of an epoch from step `start` on; the same ones as when begun at 0."""


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
    if isinstance(data, FeedSource):
        if workers:
            raise ValueError(
                f"workers={workers} with a {type(data).__name__}: it reads its rows by itself, a "
                "few row groups at a time. Leave workers at 0."
            )
        return data.feed(
            batch_size=batch_size, rank=rank, world_size=world_size, seed=seed, shuffle=shuffle
        )
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise TypeError(
            f"{type(data).__name__} is not data to train on: give a data set with len() and "
            "data[i] -> (inputs, target), or a PartitionedFile. A DataLoader has divided its rows "
            "into batches already: give its dataset."
        )
    from multigpu.data.rows import RowFeed

    return RowFeed(
        data,
        batch_size=batch_size,
        rank=rank,
        world_size=world_size,
        seed=seed,
        shuffle=shuffle,
        workers=workers,
        pin_memory=pin_memory,
    )
