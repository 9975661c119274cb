"""Parquet files with chosen row groups."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def numbers() -> Callable[[Path, Sequence[int]], Path]:
    """``numbers(path, [10, 10, 3])`` writes a file with these row groups.

    Row i has the columns number = i, half = i + 0.5, and target = 3·i.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(path: Path, sizes: Sequence[int]) -> Path:
        rows = range(sum(sizes))
        table = pa.table(
            {
                "number": pa.array(rows, pa.int64()),
                "half": pa.array([i + 0.5 for i in rows], pa.float64()),
                "target": pa.array([3 * i for i in rows], pa.int64()),
            }
        )
        with pq.ParquetWriter(path, table.schema) as writer:
            start = 0
            for size in sizes:
                writer.write_table(table.slice(start, size), row_group_size=max(size, 1))
                start += size
        return path

    return write


@pytest.fixture
def make(tmp_path: Path, numbers: Callable[[Path, Sequence[int]], Path]) -> Callable[..., Any]:
    """``make([10, 10, 3])``: a file with these row groups, as training data."""
    from multigpu.data import PartitionedFile

    def of(sizes: Sequence[int], **options: Any) -> PartitionedFile:
        path = numbers(tmp_path / "numbers.parquet", sizes)
        return PartitionedFile(path, **{"inputs": ["number"], "target": "target"} | options)

    return of
