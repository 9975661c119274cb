"""Rewrites a Parquet file with other row groups; the command `multigpu partition` calls it.

It is done in a stream: one row group of the new file is in memory at a time. The new file takes
the old one's place in one step, when it is complete; until then the old one is untouched.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from multigpu.data.partition_opening import ROWS_AT_A_TIME, one_line, open_parquet

LARGEST = 64 * 2**20  # rows: pyarrow cuts larger row groups itself


def rewrite(source: Path, output: Path, sizes: Sequence[int]) -> None:
    """Write the rows of `source` to `output` in row groups of these sizes.

    `output` may be `source`. Rows, their order, the types and the compression stay. Raises
    ValueError where the sizes do not add up to the rows, or the file is damaged.
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
            raise ValueError(f"{source} cannot be rewritten: {one_line(error)}") from error
        finally:
            partial.unlink(missing_ok=True)


def write(file: pq.ParquetFile, sink: object, sizes: Sequence[int]) -> None:
    """All rows of `file` into `sink`, row group by row group."""
    with pq.ParquetWriter(sink, file.schema_arrow, compression=compression_of(file)) as writer:
        rows = file.iter_batches(batch_size=ROWS_AT_A_TIME, use_threads=False)
        for size, table in zip(sizes, tables(rows, sizes, file.schema_arrow), strict=True):
            writer.write_table(table, row_group_size=size)


def tables(
    batches: Iterator[pa.RecordBatch], sizes: Sequence[int], schema: pa.Schema
) -> Iterator[pa.Table]:
    """The rows of a stream in tables of these sizes."""
    left: list[pa.RecordBatch] = []
    have = 0
    for size in sizes:
        while have < size:
            left.append(next(batches))
            have += left[-1].num_rows
        table = pa.Table.from_batches(left, schema)
        yield table.slice(0, size)
        rest = table.slice(size)
        left, have = rest.to_batches(), rest.num_rows


def compression_of(file: pq.ParquetFile) -> dict[str, str] | str:
    """The compression of each column, as in the file's first row group."""
    if not file.metadata.num_row_groups:
        return "snappy"
    first = file.metadata.row_group(0)
    columns = (first.column(i) for i in range(file.metadata.num_columns))
    return {
        column.path_in_schema: column.compression.replace("UNCOMPRESSED", "NONE")
        for column in columns
    }
