"""A Parquet file as training data: ranks share out its row groups, and read only their own.

    from multigpu.data import PartitionedFile
    train = PartitionedFile("flights.parquet", inputs=["origin", "hour"], target="dest")
    feed = train.feed(batch_size=512, rank=0, world_size=4)
    print(feed.describe())
    for batch in feed.batches(epoch=0):
        ...

`multigpu partition` writes such files. Who reads what: `partition_plan.py`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from multigpu.data.partition_feed import PartitionFeed
from multigpu.data.partition_opening import group_sizes, open_parquet
from multigpu.data.partition_plan import imbalance, needs_repartitioning, suggested_partitions
from multigpu.data.partition_reader import PartitionReader, has_nulls, tensor_type
from multigpu.data.row_groups import named

if TYPE_CHECKING:
    import pyarrow.parquet as pq

UNEVEN = 1.05  # from this imbalance on, feed() warns


class PartitionedFile:
    """Columns of one Parquet file. Making it reads the metadata, no rows.

    `inputs` become one tensor (rows, columns), int64 if all of them are integers, else float32;
    `target` a tensor (rows,). A rank holds the rows of `mix` row groups at a time and mixes them:
    more is closer to a shuffle of all rows, and takes more memory.

    Raises FileNotFoundError, and ValueError for a file that is no Parquet, has no rows, or whose
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
        schema = file.schema_arrow
        for name in (*self.inputs, self.target):
            if schema.names.count(name) != 1:
                there = "is twice" if name in schema.names else "is not"
                raise ValueError(
                    f"column {name!r} {there} in {self.path}; there are: {', '.join(schema.names)}"
                )
            if tensor_type(schema.field(name).type) is None:
                raise ValueError(
                    f"column {name!r} of {self.path} is {schema.field(name).type}, not a number; "
                    f"give each value a number first (pandas: frame[{name!r}]"
                    ".astype('category').cat.codes)"
                )
        for name, missing in nulls(file, (*self.inputs, self.target)).items():
            if missing:
                raise ValueError(has_nulls(self.path, name, missing))

    @property
    def num_rows(self) -> int:
        return sum(self.sizes)

    def reader(self) -> PartitionReader:
        """A context that reads rows."""
        return PartitionReader(self.path, inputs=self.inputs, target=self.target, sizes=self.sizes)

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
        feed = PartitionFeed(
            source=self,
            batch_size=batch_size,
            rank=rank,
            world_size=world_size,
            seed=seed,
            shuffle=shuffle,
        )
        if rank == 0 and (problem := self._problem(feed)):
            better = suggested_partitions(self.num_rows, len(self.sizes), world_size)
            warnings.warn(
                f"{problem}. Once and for all: multigpu partition {self.path} "
                f"--partitions {better}",
                stacklevel=2,
            )
        return feed

    def _problem(self, feed: PartitionFeed) -> str | None:
        """What is bad about the row groups for this number of ranks."""
        ranks, groups = feed.world_size, sum(size > 0 for size in self.sizes)
        if self.num_rows < ranks:
            return None  # no partitioning gives each rank a row
        if needs_repartitioning(self.sizes, ranks):
            return (
                f"{self.path} has {named(groups)} for {ranks} ranks: their "
                "rows are cut into ranges, and several ranks decode the same row group in every "
                "epoch"
            )
        if imbalance(feed.rows_by_rank) < UNEVEN:
            return None
        loads = feed.rows_by_rank
        return (
            f"{self.path} has {named(groups)} for {ranks} ranks, which get {min(loads):,} to "
            f"{max(loads):,} rows: the busiest has {imbalance(loads):.2f} × the mean, and the "
            "others wait for it"
        )


def nulls(file: pq.ParquetFile, names: Iterable[str]) -> dict[str, int]:
    """Missing values of these columns, as far as the file's statistics tell."""
    metadata = file.metadata
    found = dict.fromkeys(names, 0)
    places = [
        (i, metadata.schema.column(i).path)
        for i in range(metadata.num_columns)
        if metadata.schema.column(i).path in found
    ]
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for i, name in places:
            column = row_group.column(i)
            if column.is_stats_set:
                found[name] += column.statistics.null_count or 0
    return found
