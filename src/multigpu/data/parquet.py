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
import secrets
import shutil
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from multigpu.data.feeds import Batch, check_numbers
from multigpu.data.row_groups import (
    Partition,
    Piece,
    epoch_plan,
    imbalance,
    named,
    needs_repartitioning,
    rows_in,
    rows_so_far,
    stream,
    suggested_partitions,
)

ROWS_AT_A_TIME = 8_192  # that are decoded at once
READ_BUFFER = 2**16  # bytes per column: a row group is read through it, not in one piece
LARGEST = 64 * 2**20  # rows: pyarrow cuts larger row groups itself
UNEVEN = 1.05  # from this imbalance on, feed() warns

RowTensors = tuple[torch.Tensor, torch.Tensor]  # inputs (rows, columns) and targets (rows,)


class PartitionedFile:
    """Columns of one Parquet file. Making it reads the metadata, no rows.

    `inputs` become one tensor (rows, columns), int64 if all of them are integers, else float32;
    `target` a tensor (rows,). A rank holds the rows of `mix` row groups at a time and mixes them:
    more is closer to a shuffle of all rows, and takes more memory.

    Raises FileNotFoundError, and ValueError for a file that is not Parquet, has no rows, or whose
    columns are not there, not numbers or not complete.
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
            raise ValueError(f"target={target!r} is one of the inputs: the answer would be known")
        if mix < 1:
            raise ValueError(f"mix={mix}: a rank holds at least one row group at a time")
        with open_parquet(self.path) as file:
            self.sizes = group_sizes(file)
            if not sum(self.sizes):
                raise ValueError(f"{self.path} has no rows")
            self._refuse_columns(file)

    def _refuse_columns(self, file: pq.ParquetFile) -> None:
        """Raises ValueError for columns that cannot be trained on, as far as the metadata says."""
        schema, missing = file.schema_arrow, _missing_values(file)
        for name in (*self.inputs, self.target):
            if schema.names.count(name) != 1:
                there = "is twice" if name in schema.names else "is not"
                raise ValueError(
                    f"column {name!r} {there} in {self.path}; there are: {', '.join(schema.names)}"
                )
            if _tensor_type(schema.field(name).type) is None:
                raise ValueError(
                    f"column {name!r} of {self.path} is {schema.field(name).type}, not a number; "
                    f"give each value a number first (pandas: frame[{name!r}]"
                    ".astype('category').cat.codes)"
                )
            if missing[name]:
                raise ValueError(_has_nulls(self.path, name, missing[name]))

    @property
    def num_rows(self) -> int:
        return sum(self.sizes)

    @contextmanager
    def reader(self) -> Iterator[PartitionReader]:
        """Reads rows; it holds the file open.

        Raises ValueError where the file has other row groups or columns by now: ranks with
        different plans would wait for each other forever.
        """
        with open_parquet(self.path) as file:
            there = set(file.schema_arrow.names)
            if group_sizes(file) != self.sizes or not {*self.inputs, self.target} <= there:
                raise ValueError(f"{self.path} was rewritten while it was in use: start again")
            yield PartitionReader(self, file)

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

        Rank 0 warns where this file does not serve this many ranks well.
        """
        check_numbers(batch_size, rank, world_size)
        feed = PartitionFeed(self, batch_size, rank, world_size, seed, shuffle)
        if rank == 0 and (problem := feed.problem):
            better = suggested_partitions(self.num_rows, len(self.sizes), world_size)
            fix = f"multigpu partition {self.path} --partitions {better}"
            warnings.warn(f"{problem}. Once and for all: {fix}", stacklevel=2)
        return feed


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a file; only its metadata is read.

    Raises FileNotFoundError and ValueError (a folder, or not a Parquet file), with what to do.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path} (looked from {Path.cwd()})")
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder, give one Parquet file; pandas.read_parquet('{path}')"
            ".to_parquet(...) makes one of the folder's files, if they fit in memory"
        )
    try:
        return pq.ParquetFile(path, buffer_size=READ_BUFFER, pre_buffer=False)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(
            f"{path} cannot be read as a Parquet file, it is of another kind or incomplete: "
            f"{_one_line(error)}"
        ) from error


def group_sizes(file: pq.ParquetFile) -> tuple[int, ...]:
    """Rows per row group, from the metadata."""
    metadata = file.metadata
    return tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))


def _missing_values(file: pq.ParquetFile) -> Counter[str]:
    """Missing values by column, as far as the file's statistics tell."""
    metadata, found = file.metadata, Counter[str]()
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            column = metadata.row_group(group).column(place)
            if column.is_stats_set:
                found[column.path_in_schema] += column.statistics.null_count or 0
    return found


def _has_nulls(path: Path, name: str, count: int) -> str:
    missing = "1 value is" if count == 1 else f"{count:,} values are"
    return (
        f"column {name!r} of {path}: {missing} missing, and a model computes with numbers only; "
        f"fill the gaps (pandas: frame.fillna) or drop these rows (frame.dropna)"
    )


def _one_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _tensor_type(kind: pa.DataType) -> torch.dtype | None:
    """The type of the tensor that a column becomes; None if it is not a number."""
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return torch.int64
    return torch.float32 if pa.types.is_floating(kind) else None


class PartitionReader:
    """Rows of an open file as tensors: some pieces of row groups at a time, never the whole."""

    def __init__(self, source: PartitionedFile, file: pq.ParquetFile) -> None:
        self.source, self.file = source, file
        kinds = {_tensor_type(file.schema_arrow.field(name).type) for name in source.inputs}
        self.input_type = torch.int64 if kinds == {torch.int64} else torch.float32
        kind = _tensor_type(file.schema_arrow.field(source.target).type)
        self.target_type = kind or torch.float32

    def read(self, pieces: Sequence[Piece], order: torch.Tensor | None = None) -> RowTensors:
        """The rows of some pieces.

        Row i of them lands at place `order[i]`; without an order they stay as they are. Every row
        is written to its place as it is decoded, so that the rows are in memory once only.
        """
        rows, names = rows_in(pieces), self.source.inputs
        inputs = torch.empty(rows, len(names), dtype=self.input_type)
        targets = torch.empty(rows, dtype=self.target_type)
        done = 0
        for piece in pieces:
            for batch in self._decoded(piece):
                here = slice(done, done + batch.num_rows)
                places = here if order is None else order[here]
                columns = [self._column(batch, name, self.input_type) for name in names]
                inputs[places] = torch.stack(columns, dim=1)  # (decoded rows, columns)
                targets[places] = self._column(batch, self.source.target, self.target_type)
                done += batch.num_rows
        assert done == rows, f"{done} of {rows} rows"  # the sizes were compared at the start
        return inputs, targets

    def first_row(self) -> RowTensors:
        """The first row of the file, for a rank that has none in a step."""
        group = next(i for i, size in enumerate(self.source.sizes) if size)
        return self.read([Piece(group, 0, 1)])

    def _decoded(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """The rows of a piece. Parquet cannot skip rows: those before it are decoded, too."""
        batches = self.file.iter_batches(
            batch_size=min(ROWS_AT_A_TIME, piece.stop),
            row_groups=[piece.group],
            columns=[*self.source.inputs, self.source.target],
            use_threads=False,  # each rank has its share of the cores
        )
        begin = 0
        try:
            for batch in batches:
                first, last = max(piece.start - begin, 0), min(piece.stop - begin, batch.num_rows)
                if first < last:
                    yield batch.slice(first, last - first)
                begin += batch.num_rows
                if begin >= piece.stop:
                    return
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(
                f"row group {piece.group} of {self.source.path} cannot be read, the file is "
                f"damaged: {_one_line(error)}"
            ) from error

    def _column(self, batch: pa.RecordBatch, name: str, kind: torch.dtype) -> torch.Tensor:
        """The values of one column. Raises ValueError for nulls and numbers that do not fit."""
        column, path = batch.column(name), self.source.path
        if column.null_count:
            raise ValueError(_has_nulls(path, name, column.null_count))
        try:
            column = column.cast(pa.int64() if kind == torch.int64 else pa.float32())
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"column {name!r} of {path} has numbers that {kind} cannot hold exactly: "
                f"{_one_line(error)}"
            ) from error
        values = torch.from_numpy(column.to_numpy(zero_copy_only=False).copy())
        if kind == torch.float32 and not values.isfinite().all():
            raise ValueError(
                f"column {name!r} of {path}: {int((~values.isfinite()).sum()):,} values are NaN, "
                "infinite or too large for float32. Fix or drop these rows (pandas: frame.dropna)"
            )
        return values


@dataclass(frozen=True)
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
        mix = self.source.mix
        blocks = [mine[i : i + mix] for i in range(0, len(mine), mix)]  # in memory together
        key = (self.seed, epoch) if self.shuffle else None
        with self.source.reader() as reader:
            stock = Stock(reader, blocks, key=key, skip=before)
            for _ in range(start, self.steps_per_epoch):
                end = min(begin + self.batch_size, self.num_rows)
                after = rows_so_far(loads, end)[self.rank]
                rows = after - before
                inputs, targets = stock.take(rows) if rows else reader.first_row()
                yield Batch(inputs, targets, rows=rows, global_rows=end - begin)
                begin, before = end, after

    @property
    def problem(self) -> str | None:
        """What is bad about the row groups for this number of ranks."""
        loads, path = self.rows_by_rank, self.source.path
        if self.num_rows < self.world_size:
            return None  # no partitioning gives each rank a row
        count = f"{path} has {named(self._groups)} for {self.world_size} ranks"
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
        lines = [f"{name}: {self.num_rows:,} rows in {named(self._groups)}{parts}"]
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
        self.block: RowTensors | None = None

    def take(self, rows: int) -> RowTensors:
        """The next `rows` rows, copied: a batch that is kept does not keep a block."""
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

    def _read(self, pieces: Sequence[Piece]) -> RowTensors:
        """A block into memory, its rows in an order that depends on the key and on these pieces."""
        if self.key is None:
            return self.reader.read(pieces)
        first = pieces[0]
        seed = stream(*self.key, first.group, first.start, first.stop).getrandbits(63)
        order = torch.randperm(rows_in(pieces), generator=torch.Generator().manual_seed(seed))
        return self.reader.read(pieces, order)


def row_groups_of(path: Path) -> tuple[int, ...]:
    """Rows per row group of a file."""
    with open_parquet(path) as file:
        return group_sizes(file)


def rewrite(source: Path, output: Path, sizes: Sequence[int]) -> None:
    """Write the rows of `source` to `output` in row groups of these sizes.

    `output` may be `source`. Rows, their order, the types and the compression stay. One row group
    of the new file is in memory at a time. The new file takes the old one's place in one step, when
    it is complete; until then the old one is untouched. Raises ValueError where the sizes do not
    add up to the rows, or the file is damaged.
    """
    if max(sizes) > LARGEST:
        raise ValueError(f"{max(sizes):,} rows: a row group has {LARGEST:,} at most")
    output = output.resolve()  # of a link in its place, the file that it points to
    if not output.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {output.parent} to write {output.name} to")
    partial = output.with_name(f".{output.name}.{secrets.token_hex(4)}.partial")
    with open_parquet(source) as file:
        if sum(sizes) != file.metadata.num_rows:
            raise ValueError(
                f"row groups for {sum(sizes):,} rows, but {source} has {file.metadata.num_rows:,}"
            )
        try:
            with partial.open("xb") as sink:
                write(file, sink, sizes)
                sink.flush()
                os.fsync(sink.fileno())
            if output.exists():
                shutil.copymode(output, partial)
            partial.replace(output)
        except (pa.ArrowInvalid, pa.ArrowException) as error:
            raise ValueError(f"{source} cannot be rewritten: {_one_line(error)}") from error
        finally:
            partial.unlink(missing_ok=True)


def write(file: pq.ParquetFile, sink: object, sizes: Sequence[int]) -> None:
    """All rows of `file` into `sink`, row group by row group, compressed as the first one is."""
    compression: dict[str, str] | str = "snappy"
    if file.metadata.num_row_groups:
        first = file.metadata.row_group(0)
        columns = map(first.column, range(file.metadata.num_columns))
        compression = {
            column.path_in_schema: column.compression.replace("UNCOMPRESSED", "NONE")
            for column in columns
        }
    schema = file.schema_arrow
    # pyarrow.dataset writes row groups too, but of one size: not 10 rows in 8 of them.
    with pq.ParquetWriter(sink, schema, compression=compression) as writer:
        batches = file.iter_batches(batch_size=ROWS_AT_A_TIME, use_threads=False)
        left: list[pa.RecordBatch] = []
        have = 0
        for size in sizes:
            while have < size:
                left.append(next(batches))
                have += left[-1].num_rows
            table = pa.Table.from_batches(left, schema)
            writer.write_table(table.slice(0, size), row_group_size=size)
            rest = table.slice(size)
            left, have = rest.to_batches(), rest.num_rows
