"""Opens a Parquet file and reads its metadata; of the rows nothing."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROWS_AT_A_TIME = 8_192  # that are decoded at once
READ_BUFFER = 2**16  # bytes per column: a row group is read through it, not in one piece


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a file; only its metadata is read.

    Raises FileNotFoundError and ValueError (a folder, or no Parquet file), with what to do.
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
            f"{one_line(error)}"
        ) from error


def one_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def group_sizes(file: pq.ParquetFile) -> tuple[int, ...]:
    """Rows per row group, from the metadata."""
    metadata = file.metadata
    return tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))


def row_groups_of(path: Path) -> tuple[int, ...]:
    """Rows per row group of a file."""
    with open_parquet(path) as file:
        return group_sizes(file)
