"""The batches of one rank, read from its row groups of a Parquet file a few at a time.

Which rows these are comes from `partition_plan.py`. A rank holds the rows of `mix` partitions at a
time and gives them in random order; then it reads the next ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from multigpu.data.feeds import Batch
from multigpu.data.partition_plan import (
    Piece,
    epoch_plan,
    needs_repartitioning,
    rows_in,
    rows_so_far,
    stream,
)
from multigpu.data.partition_reader import PartitionReader
from multigpu.data.row_groups import named

if TYPE_CHECKING:
    from multigpu.data.partitions import PartitionedFile


@dataclass(frozen=True, kw_only=True)
class PartitionFeed:
    """The batches of one rank. Every global batch has `batch_size` rows, the last may have fewer.

    A rank gives its rows evenly over the epoch, so that ranks with few rows have small batches
    from the first step to the last instead of none towards the end: the mean over the ranks then
    always comes from all of them.
    """

    source: PartitionedFile
    batch_size: int
    rank: int
    world_size: int
    seed: int
    shuffle: bool

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size}: a batch has at least one row")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank={self.rank}: with world_size={self.world_size} use 0 to "
                f"{self.world_size - 1}"
            )

    @property
    def num_rows(self) -> int:
        return self.source.num_rows

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.num_rows / self.batch_size)

    @property
    def rows_by_rank(self) -> list[int]:
        """How many rows each rank has; the same in every epoch."""
        return [rows_in(pieces) for pieces in self.plan(0)]

    def plan(self, epoch: int) -> list[tuple[Piece, ...]]:
        """What each rank reads in an epoch."""
        return epoch_plan(
            self.source.sizes, self.world_size, seed=self.seed, epoch=epoch, shuffle=self.shuffle
        )

    def batches(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """This rank's batches from step `start` on. Row groups that were used up are not read.

        Raises ValueError where the file is damaged, was rewritten, or has missing values.
        """
        loads, mine = self.rows_by_rank, self.plan(epoch)[self.rank]
        begin = min(start * self.batch_size, self.num_rows)
        before = rows_so_far(loads, begin)[self.rank]
        with self.source.reader() as reader:
            stock = Stock(reader, self._blocks(mine), key=self._key(epoch), skip=before)
            for _ in range(start, self.steps_per_epoch):
                end = min(begin + self.batch_size, self.num_rows)
                after = rows_so_far(loads, end)[self.rank]
                rows = after - before
                inputs, targets = stock.take(rows) if rows else reader.first_row()
                yield Batch(inputs, targets, rows=rows, global_rows=end - begin)
                begin, before = end, after

    def _blocks(self, pieces: Sequence[Piece]) -> list[Sequence[Piece]]:
        """The pieces that are in memory together."""
        mix = self.source.mix
        return [pieces[i : i + mix] for i in range(0, len(pieces), mix)]

    def _key(self, epoch: int) -> tuple[int, ...] | None:
        """What the order of the rows depends on, beside which rows they are."""
        return (self.seed, epoch) if self.shuffle else None

    def describe(self) -> str:
        """How the rows are shared out, rank by rank."""
        loads, plan = self.rows_by_rank, self.plan(0)
        groups = sum(size > 0 for size in self.source.sizes)
        parts = ""
        if needs_repartitioning(self.source.sizes, self.world_size):
            parts = ", cut into ranges of rows because there are fewer than ranks"
        lines = [f"{self.source.path.name}: {self.num_rows:,} rows in {named(groups)}{parts}"]
        mean = self.num_rows / self.world_size
        for rank, (rows, pieces) in enumerate(zip(loads, plan, strict=True)):
            lines.append(
                f"  rank {rank}: {named(len(pieces)):>14} {rows:12,} rows  "
                f"{rows / mean:.2f} × the mean"
            )
        busiest = max(rows_so_far(loads, min(self.batch_size, self.num_rows)))
        lines.append(
            f"  {self.steps_per_epoch:,} steps of {self.batch_size:,} rows; the busiest rank "
            f"computes about {busiest:,} of them"
        )
        return "\n".join(lines)


class Stock:
    """Rows that were read and not yet given. It holds one block at a time."""

    def __init__(
        self,
        reader: PartitionReader,
        blocks: Sequence[Sequence[Piece]],
        *,
        key: tuple[int, ...] | None,
        skip: int,
    ) -> None:
        """`key`: of the shuffle, None leaves the file's order. `skip`: rows given before."""
        self.reader, self.key = reader, key
        self.blocks = list(blocks)
        while self.blocks and skip >= rows_in(self.blocks[0]):
            skip -= rows_in(self.blocks.pop(0))
        self.place = skip  # of the next row in the block that is, or comes, into memory
        self.block: tuple[torch.Tensor, torch.Tensor] | None = None

    def take(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The next `rows` rows, copied: a batch that somebody keeps does not keep a block."""
        parts = []
        while rows:
            if self.block is None:
                self.block = self._read(self.blocks.pop(0))
            inputs, targets = self.block
            here = slice(self.place, min(self.place + rows, len(targets)))
            parts.append((inputs[here].clone(), targets[here].clone()))
            rows -= here.stop - here.start
            self.place = here.stop
            if self.place == len(targets):  # let go of it before the next one is read
                self.block, self.place = None, 0
                del inputs, targets
        if len(parts) == 1:
            return parts[0]
        return torch.cat([inputs for inputs, _ in parts]), torch.cat([t for _, t in parts])

    def _read(self, pieces: Sequence[Piece]) -> tuple[torch.Tensor, torch.Tensor]:
        """A block into memory, its rows in an order that depends on the key and on these pieces."""
        if self.key is None:
            return self.reader.read(pieces)
        first = pieces[0]
        seed = stream(*self.key, first.group, first.start, first.stop).getrandbits(63)
        order = torch.randperm(rows_in(pieces), generator=torch.Generator().manual_seed(seed))
        return self.reader.read(pieces, order)
