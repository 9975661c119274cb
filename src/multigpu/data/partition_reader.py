"""Rows of a Parquet file as tensors: some pieces of row groups at a time, never the whole file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import torch

from multigpu.data.partition_opening import ROWS_AT_A_TIME, group_sizes, one_line, open_parquet
from multigpu.data.partition_plan import Piece, rows_in


def tensor_type(kind: pa.DataType) -> torch.dtype | None:
    """The type of the tensor that a column becomes: int64 or float32; None if it is no number."""
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return torch.int64
    return torch.float32 if pa.types.is_floating(kind) else None


class PartitionReader:
    """Reads columns of one file. Use it as a context; it holds the file open, but no rows."""

    def __init__(
        self, path: Path, *, inputs: Sequence[str], target: str, sizes: Sequence[int]
    ) -> None:
        """`sizes` are the rows per row group that the plan was made with.

        Raises ValueError where the file has others by now: ranks with different plans would wait
        for each other for ever.
        """
        self.path, self.inputs, self.target = path, list(inputs), target
        self.file = open_parquet(path)
        there = set(self.file.schema_arrow.names)
        if group_sizes(self.file) != tuple(sizes) or not {*inputs, target} <= there:
            self.file.close()
            raise ValueError(f"{path} was rewritten while it was in use: start again")
        kinds = [tensor_type(self.file.schema_arrow.field(name).type) for name in self.inputs]
        self.input_type = torch.int64 if set(kinds) == {torch.int64} else torch.float32
        target_type = tensor_type(self.file.schema_arrow.field(target).type)
        self.target_type = target_type or torch.float32

    def __enter__(self) -> PartitionReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.file.close()

    def read(
        self, pieces: Sequence[Piece], order: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of some pieces: inputs (rows, columns) and targets (rows,).

        Row i of them lands at place `order[i]`; without an order they stay as they are. Every row
        is written to its place as it is decoded, so that the rows are in memory once only.
        """
        rows = rows_in(pieces)
        inputs = torch.empty(rows, len(self.inputs), dtype=self.input_type)
        targets = torch.empty(rows, dtype=self.target_type)
        done = 0
        for piece in pieces:
            for batch in self._decoded(piece):
                here = slice(done, done + batch.num_rows)
                places = here if order is None else order[here]
                columns = [self._column(batch, name, self.input_type) for name in self.inputs]
                inputs[places] = torch.stack(columns, dim=1)  # (decoded rows, columns)
                targets[places] = self._column(batch, self.target, self.target_type)
                done += batch.num_rows
        assert done == rows, f"{done} of {rows} rows"  # the sizes were compared at the start
        return inputs, targets

    def first_row(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The first row of the file, for a rank that has none in a step."""
        group = next(i for i, size in enumerate(group_sizes(self.file)) if size)
        return self.read([Piece(group, 0, 1)])

    def _decoded(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """The rows of a piece. Parquet cannot skip rows: those before it are decoded, too."""
        batches = self.file.iter_batches(
            batch_size=min(ROWS_AT_A_TIME, piece.stop),
            row_groups=[piece.group],
            columns=[*self.inputs, self.target],
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
                f"row group {piece.group} of {self.path} cannot be read, the file is damaged: "
                f"{one_line(error)}"
            ) from error

    def _column(self, batch: pa.RecordBatch, name: str, kind: torch.dtype) -> torch.Tensor:
        """The values of one column. Raises ValueError for nulls and numbers that do not fit."""
        column = batch.column(name)
        if column.null_count:
            raise ValueError(has_nulls(self.path, name, column.null_count))
        try:
            column = column.cast(pa.int64() if kind == torch.int64 else pa.float32())
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"column {name!r} of {self.path} has numbers that {kind} cannot hold exactly: "
                f"{one_line(error)}"
            ) from error
        values = torch.from_numpy(column.to_numpy(zero_copy_only=False).copy())
        if kind == torch.float32 and not values.isfinite().all():
            raise ValueError(
                f"column {name!r} of {self.path}: {int((~values.isfinite()).sum()):,} values are "
                "NaN, infinite or too large for float32. Mend or drop these rows (pandas: "
                "frame.dropna)"
            )
        return values


def has_nulls(path: Path, name: str, count: int) -> str:
    """What is said of a column with missing values."""
    missing = "1 value is" if count == 1 else f"{count:,} values are"
    return (
        f"column {name!r} of {path}: {missing} missing, and a model computes with numbers only; "
        f"fill the gaps (pandas: frame.fillna) or drop these rows (frame.dropna)"
    )
