"""Rows in memory, divided among ranks: every mode and every world size sees the same batches.

Global batch b of an epoch is rows b·B to (b+1)·B of one shuffled order, which all ranks draw from
the same seed. Each rank takes its share of it, so training on four ranks computes what training on
one does. (`DistributedSampler` divides the whole epoch first, so that the batches differ.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from multigpu.data.feeds import Batch


class RowFeed:
    """The batches of one rank from a map-style data set.

    Its items are `(inputs, target)`, or `(first, second, ..., target)`: then the batch's inputs
    are a tuple.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        """`batch_size` counts the rows of all ranks; `workers` are DataLoader processes.

        `pin_memory` puts batches where a GPU can fetch them while the program goes on.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: a batch has at least one row")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank}: with world_size={world_size} use 0 to {world_size - 1}")
        if not len(dataset):
            raise ValueError("the data set has no rows")
        self.dataset, self.batch_size = dataset, batch_size
        self.rank, self.world_size = rank, world_size
        self.seed, self.shuffle = seed, shuffle
        self.workers, self.pin_memory = workers, pin_memory

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
        return torch.randperm(self.num_rows, generator=mixed(self.seed, epoch))

    def batches(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """This rank's share of each global batch, from step `start` on."""
        global_batches = torch.split(self.order(epoch), self.batch_size)[start:]
        shares = [share_of(rows, self.rank, self.world_size) for rows in global_batches]
        # Workers that transform rows at random draw other numbers in each epoch, on each rank.
        own = mixed(self.seed, epoch, start, self.rank)
        filled = [  # a rank without rows computes one of the others', for nothing
            share if len(share) else rows[:1]
            for rows, share in zip(global_batches, shares, strict=True)
        ]
        loaded = self._load(filled, own)
        for rows, share, items in zip(global_batches, shares, loaded, strict=True):
            *inputs, targets = columns_of(items)
            yield Batch(
                inputs=inputs[0] if len(inputs) == 1 else tuple(inputs),
                targets=targets,
                rows=len(share),
                global_rows=len(rows),
            )

    def _load(self, wanted: list[torch.Tensor], own: torch.Generator) -> DataLoader[Any]:
        """Load these rows, batch by batch; with `own` torch's random state is left alone."""
        if isinstance(self.dataset, TensorDataset):  # takes all indices of a batch at once
            how: dict[str, Any] = {"sampler": wanted, "batch_size": None}
        else:
            how = {"batch_sampler": [rows.tolist() for rows in wanted]}
        how |= {"num_workers": self.workers, "pin_memory": self.pin_memory, "generator": own}
        return DataLoader(self.dataset, **how)


def mixed(*numbers: int) -> torch.Generator:
    """A generator for all of these numbers: seed 0 in epoch 1 is not seed 1 in epoch 0."""
    seed = 0
    for number in numbers:
        seed = (seed * 1_000_003 + number) % 2**63
    return torch.Generator().manual_seed(seed)


def columns_of(items: Any) -> Any:
    """The inputs of some rows and, last, their targets.  Raises TypeError for other items."""
    if isinstance(items, tuple | list) and len(items) > 1:
        return items
    raise TypeError(
        f"an item of the data set is a {type(items).__name__}"
        f"{f' of {len(items)}' if isinstance(items, tuple | list) else ''}: "
        "give (inputs, target) pairs; the inputs may be a dict."
    )


def share_of(rows: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    """The rows of one rank: contiguous shares whose lengths differ by one row at most.

    10 rows on 4 ranks: 3, 3, 2, 2. A rank may get none: 3 rows on 4 ranks: 1, 1, 1, 0.
    """
    return rows.tensor_split(world_size)[rank]
