"""How many rows go into a row group, and how many row groups that makes.

pandas and pyarrow call the number of rows `row_group_size`, cuDF calls it `row_group_size_rows`.
"""

from collections.abc import Sequence

from multigpu.data.partition_plan import deal, imbalance

EVENLY = 1.01  # the largest imbalance that is called even


def fixed_size(rows: int, row_group_size: int) -> list[int]:
    """Rows per row group when all have this size and the last has the rest, as pandas writes them.

    There are ceil(rows / row_group_size) of them.
    """
    if row_group_size < 1:
        raise ValueError(f"row_group_size={row_group_size}: a row group has at least one row")
    full, rest = divmod(rows, row_group_size)
    return [row_group_size] * full + [rest] * (rest > 0)


def fixed_number(rows: int, partitions: int) -> list[int]:
    """Rows per row group when there shall be so many; they differ by one row at most.

    No `row_group_size` cuts 10 rows into 8: 2 gives 5 row groups and 1 gives 10. Here two of
    them have 2 rows, and six have 1.
    """
    if partitions < 1:
        raise ValueError(f"partitions={partitions}: give 1 or more")
    if partitions > rows:
        raise ValueError(f"partitions={partitions}: {rows:,} rows make {rows:,} at most")
    size, larger = divmod(rows, partitions)
    return [size + 1] * larger + [size] * (partitions - larger)


def served_evenly(sizes: Sequence[int]) -> list[int]:
    """The numbers of ranks that get whole row groups, and all the same number of rows."""
    return [
        ranks
        for ranks in range(1, len(sizes) + 1)
        if len(sizes) % ranks == 0 and is_even(rows_dealt(sizes, ranks))
    ]


def is_even(rows_by_rank: Sequence[int]) -> bool:
    """Whether ranks differ by one row at most, or hardly."""
    return max(rows_by_rank) - min(rows_by_rank) <= 1 or imbalance(rows_by_rank) <= EVENLY


def rows_dealt(sizes: Sequence[int], world_size: int) -> list[int]:
    """Rows per rank when the row groups are dealt out."""
    return [sum(sizes[i] for i in hand) for hand in deal(sizes, world_size)]


def named(row_groups: int) -> str:
    """``1 row group``, ``8 row groups``."""
    return f"{row_groups:,} row group{'s'[: row_groups != 1]}"
