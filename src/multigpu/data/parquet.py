"""A Parquet file as training data: row groups are divided among ranks, each reads only its own.

    from multigpu.data import PartitionedFile
    train = PartitionedFile("flights.parquet", inputs=["origin", "hour"], target="dest")
    feed = train.feed(batch_size=512, rank=0, world_size=4)
    print(feed.describe())
    for batch in feed.batches(epoch=0):
        ...

Which rank reads what is decided in row_groups.py. A rank holds the rows of `mix` row groups at a
time and gives them in random order; then it reads the next ones. `rewrite` gives a file other row
groups: the command `multigpu partition`.
"""

from __future__ import annotations

import math
import os
import shutil
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from multigpu.data.feeds import Batch
from multigpu.data.replacing import replacing
from multigpu.data.row_groups import (
    Partition,
    Piece,
    epoch_plan,
    imbalance,
    needs_repartitioning,
    rows_in,
    rows_so_far,
    stream,
    suggested_partitions,
)
from multigpu.ranks.errors import counted

ROWS_AT_A_TIME = 8_192  # that `rewrite` decodes at once
READ_BUFFER = 2**16  # bytes per column: a row group is read through it, not in one piece
UNEVEN = 1.05  # from this imbalance on, feed() warns

RowTensors = tuple[torch.Tensor, torch.Tensor]  # inputs (rows, columns) and targets (rows,)


class PartitionedFile:
    """Columns of one Parquet file. Making it reads the metadata, no rows.

    `inputs` become one tensor (rows, columns), int64 if all of them are integers, else float32;
    `target` a tensor (rows,). A rank holds the rows of `mix` row groups at a time and mixes them: a
    larger number is closer to a shuffle of all rows and takes more memory.

    Raises FileNotFoundError, and ValueError for a file that is not Parquet, has no rows, or whose
    columns are not there or not numbers.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        inputs: Sequence[str],
        target: str,
        mix: int = 2,
    ) -> None:
        self.path, self.inputs, self.target, self.mix = Path(path), tuple(inputs), target, mix
        if isinstance(inputs, str) or not inputs:
            raise ValueError(f"inputs={inputs!r}: give a list with the name of at least one column")
        if target in inputs:
            raise ValueError(
                f"target={target!r} is one of the inputs, so the model would see the answer"
            )
        with opened(self.path) as file:
            self.metadata, self.sizes = file.metadata, group_sizes(file.metadata)
            types = {name: self._type_of(file.schema_arrow, name) for name in (*inputs, target)}
        if not self.num_rows:
            raise ValueError(f"{self.path} has no rows")
        self.target_type, kinds = types.pop(target), set(types.values())
        self.input_type = kinds.pop() if len(kinds) == 1 else np.dtype("float32")

    def _type_of(self, schema: pa.Schema, name: str) -> np.dtype[Any]:
        """The type of the tensor that a column becomes."""
        if name not in schema.names:
            there = ", ".join(schema.names)
            raise ValueError(f"column {name!r} is not in {self.path}; there are: {there}")
        kind = schema.field(name).type
        if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
            return np.dtype("int64")
        if pa.types.is_floating(kind):
            return np.dtype("float32")
        raise ValueError(
            f"column {name!r} of {self.path} is {kind}, not a number; encode its values as numbers "
            f"first (pandas: frame[{name!r}].astype('category').cat.codes)"
        )

    @property
    def num_rows(self) -> int:
        return sum(self.sizes)

    def feed(
        self,
        *,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        shuffle: bool = True,
    ) -> PartitionFeed:
        """The feed of one rank; `batch_size` counts the rows of all ranks.

        Rank 0 warns if the row groups of this file do not suit this number of ranks.
        """
        feed = PartitionFeed(self, batch_size, rank, world_size, seed, shuffle)
        if rank == 0 and (problem := feed.problem):
            better = suggested_partitions(self.num_rows, len(self.sizes), world_size)
            fix = f"multigpu partition {self.path} --partitions {better}"
            warnings.warn(f"{problem}. To fix the file: {fix}", stacklevel=2)
        return feed


@contextmanager
def opened(path: Path) -> Iterator[pq.ParquetFile]:
    """A file to read from. Only its metadata is read at once.

    Raises FileNotFoundError, and ValueError where it is damaged or not a Parquet file.
    """
    with reading(path):
        file = pq.ParquetFile(path, buffer_size=READ_BUFFER, pre_buffer=False)
    with file:
        yield file


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Read only the file inside the block, because every error is reported as the file's fault."""
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        if getattr(error, "errno", None):  # the system's own message names the file
            raise
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} cannot be read as a Parquet file: {reason}") from error


def group_sizes(metadata: pq.FileMetaData) -> tuple[int, ...]:
    """Rows per row group."""
    return tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))


@dataclass(frozen=True)
class PartitionFeed:
    """The batches of one rank. Every global batch has `batch_size` rows, the last may have fewer.

    A rank spreads its rows evenly over the epoch, so that ranks with few rows have small batches
    from the first step to the last instead of none towards the end: the mean over the ranks then
    always comes from all of them.
    """

    source: PartitionedFile
    batch_size: int
    rank: int
    world_size: int
    seed: int
    shuffle: bool

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

    def plan(self, epoch: int) -> list[Partition]:
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
        with opened(self.source.path) as file:
            if file.metadata != self.source.metadata:  # ranks with different plans would hang
                raise ValueError(f"{self.source.path} was rewritten while it was in use")
            key = (self.seed, epoch) if self.shuffle else ()
            reader = PartitionReader(file, self.source, mine, key)
            for _ in range(start, self.steps_per_epoch):
                end = min(begin + self.batch_size, self.num_rows)
                after = rows_so_far(loads, end)[self.rank]
                inputs, targets = reader.take(before, after)
                yield Batch(inputs, targets, rows=after - before, global_rows=end - begin)
                begin, before = end, after

    @property
    def problem(self) -> str | None:
        """What is wrong with the row groups for this number of ranks."""
        loads, path = self.rows_by_rank, self.source.path
        if self.num_rows < self.world_size:
            return None  # no partitioning gives each rank a row
        count = f"{path} has {counted(self._groups, 'row group')} for {self.world_size} ranks"
        if needs_repartitioning(self.source.sizes, self.world_size):
            return (
                f"{count}: their rows are cut into ranges, and several ranks decode the same row "
                "group in every epoch"
            )
        if imbalance(loads) < UNEVEN:
            return None
        return (
            f"{count}, which get {min(loads):,} to {max(loads):,} rows: the busiest has "
            f"{imbalance(loads):.2f} × the mean, and the others wait for it"
        )

    @property
    def _groups(self) -> int:
        return sum(size > 0 for size in self.source.sizes)

    def describe(self) -> str:
        """How the rows are divided, rank by rank."""
        loads, plan = self.rows_by_rank, self.plan(0)
        parts = ""
        if needs_repartitioning(self.source.sizes, self.world_size):
            parts = ", cut into ranges of rows because there are fewer than ranks"
        name = self.source.path.name
        lines = [f"{name}: {self.num_rows:,} rows in {counted(self._groups, 'row group')}{parts}"]
        mean = self.num_rows / self.world_size
        for rank, (rows, pieces) in enumerate(zip(loads, plan, strict=True)):
            lines.append(
                f"  rank {rank}: {counted(len(pieces), 'row group'):>14} {rows:12,} rows  "
                f"{rows / mean:.2f} × the mean"
            )
        busiest = max(rows_so_far(loads, min(self.batch_size, self.num_rows)))
        lines.append(
            f"  {self.steps_per_epoch:,} steps of {self.batch_size:,} rows; the busiest rank "
            f"computes about {busiest:,} of them"
        )
        return "\n".join(lines)


class PartitionReader:
    """The rows that one rank reads in an epoch. Only one block of pieces is in memory at a time."""

    def __init__(
        self, file: pq.ParquetFile, source: PartitionedFile, pieces: Partition, key: tuple[int, ...]
    ) -> None:
        """`key` of the shuffle; without one the rows keep the file's order."""
        self.file, self.source, self.key = file, source, key
        mix = source.mix
        self.blocks = [pieces[i : i + mix] for i in range(0, len(pieces), mix)]
        self.starts = [0, *accumulate(map(rows_in, self.blocks))]
        self.block: RowTensors | None = None
        self.held: int | None = None  # which block that is

    def take(self, begin: int, end: int) -> RowTensors:
        """Rows `begin` to `end` of the epoch, copied, so that a batch keeps no block in memory.

        A rank without rows in a step gets the first row of the file.
        """
        if begin == end:
            group = next(i for i, size in enumerate(self.source.sizes) if size)
            return self.read([Piece(group, 0, 1)])
        parts = list[RowTensors]()
        while begin < end:
            number = bisect_right(self.starts, begin) - 1
            if self.held != number:
                self.block = None  # let go of the old one before the next one is read
                self.block, self.held = self.read(self.blocks[number]), number
            assert self.block is not None
            start, stop = self.starts[number : number + 2]
            here = slice(begin - start, min(end, stop) - start)
            parts.append((self.block[0][here].clone(), self.block[1][here].clone()))
            begin = start + here.stop
        if len(parts) == 1:
            return parts[0]
        return torch.cat([inputs for inputs, _ in parts]), torch.cat([t for _, t in parts])

    def read(self, pieces: Sequence[Piece]) -> RowTensors:
        """The rows of some pieces, in an order that depends on the key and on these pieces.

        Every row is written to its place, so that only one row group is in memory twice.
        """
        rows, source = rows_in(pieces), self.source
        inputs = np.empty((rows, len(source.inputs)), source.input_type)
        targets = np.empty(rows, source.target_type)
        order = np.arange(rows)
        if self.key:
            first = pieces[0]
            seed = stream(*self.key, first.group, first.start, first.stop).getrandbits(63)
            order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed)).numpy()
        done = 0
        for piece in pieces:  # Parquet cannot skip rows: the whole row group is decoded
            names = [*source.inputs, source.target]
            with reading(source.path):
                group = self.file.read_row_group(piece.group, columns=names, use_threads=False)
            table = group.slice(piece.start, piece.rows)
            places = order[done : done + piece.rows]
            columns = [self._column(table, name, inputs.dtype) for name in source.inputs]
            inputs[places] = np.stack(columns, axis=1)  # (rows, columns)
            targets[places] = self._column(table, source.target, targets.dtype)
            done += piece.rows
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    def _column(self, table: pa.Table, name: str, kind: np.dtype[Any]) -> Any:
        """The values of one column. Raises ValueError where some are missing or do not fit."""
        try:
            values = table.column(name).cast(pa.from_numpy_dtype(kind)).to_numpy()
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"column {name!r} of {self.source.path}, as {kind}: {error}"
            ) from error
        # What is missing has become NaN.
        if values.dtype.kind == "f" and not (finite := np.isfinite(values)).all():
            raise ValueError(
                f"column {name!r} of {self.source.path}: {(~finite).sum():,} values are missing, "
                "NaN, infinite or too large for float32; fill the gaps (pandas: frame.fillna) or "
                "drop these rows (frame.dropna)"
            )
        return values


def rewrite(source: Path, output: Path, sizes: Sequence[int]) -> None:
    """Write the rows of `source` to `output` in row groups of these sizes.

    `output` may be `source`. Rows, their order, the types and each column's compression stay. One
    row group of the new file is in memory at a time. The new file takes the old one's place in one
    step, when it is complete; until then the old one is untouched. Raises ValueError for a damaged
    file, and for sizes that are not all of its rows.
    """
    output = output.resolve()  # of a link in its place, the file that it points to
    with opened(source) as file, replacing(output) as partial:
        if sum(sizes) != file.metadata.num_rows:
            raise ValueError(
                f"{source} has {file.metadata.num_rows:,} rows, the row groups {sum(sizes):,}"
            )
        group = file.metadata.row_group(0)
        columns = [group.column(number) for number in range(group.num_columns)]
        compression = {
            column.path_in_schema: column.compression.replace("UNCOMPRESSED", "NONE")
            for column in columns
        }
        batches = file.iter_batches(batch_size=ROWS_AT_A_TIME)
        rows = file.schema_arrow.empty_table()
        # pyarrow.dataset writes row groups too, but of one size: not 10 rows in 8 of them.
        with pq.ParquetWriter(partial, file.schema_arrow, compression=compression) as writer:
            for size in sizes:
                while rows.num_rows < size:
                    with reading(source):
                        batch = next(batches)
                    rows = pa.concat_tables([rows, pa.Table.from_batches([batch])])
                writer.write_table(rows.slice(0, size), row_group_size=size)
                rows = rows.slice(size)
        if output.exists():
            shutil.copymode(output, partial)
