"""Row groups of a Parquet file: how many there are, and which rank reads which rows in an epoch.

A Parquet file consists of row groups. Here they are the partitions that are divided among ranks,
and the file's metadata alone decides how. Every rank calls these functions with the same numbers
and gets the same plan, so nothing is sent.

    plan = epoch_plan([100, 100, 100, 40], 2, seed=0, epoch=0)
    plan[1]    # what rank 1 reads, in this order: (Piece(group=1, start=0, stop=100), ...)

Read parquet.py next: it turns a plan into batches. (pandas and pyarrow call the rows of a row group
`row_group_size`, cuDF calls them `row_group_size_rows`.)
"""

import heapq
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

EVENLY = 1.01  # the largest imbalance that is called even


@dataclass(frozen=True)
class Piece:
    """Rows `start` to `stop` (not included) of one row group."""

    group: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


Partition = tuple[Piece, ...]
"""The unit that is given to a rank: one row group, or after a repartitioning parts of some."""


def rows_in(pieces: Iterable[Piece]) -> int:
    """How many rows these pieces have together."""
    return sum(piece.rows for piece in pieces)


def epoch_plan(
    sizes: Sequence[int], world_size: int, *, seed: int = 0, epoch: int = 0, shuffle: bool = True
) -> list[Partition]:
    """What each rank reads in an epoch, in order; every row comes once.

    `sizes`: rows per row group. With `shuffle`, each epoch assigns the partitions again and reads
    them in another order; the number of rows per rank stays.
    """
    partitions = partitions_for(sizes, world_size)
    if shuffle:
        stream(seed, epoch).shuffle(partitions)
    assigned = assign([rows_in(partition) for partition in partitions], world_size)
    plan = []
    for rank, own in enumerate(assigned):
        if shuffle:  # else a short last row group would always be read last
            stream(seed, epoch, rank).shuffle(own)
        plan.append(tuple(piece for index in own for piece in partitions[index]))
    return plan


def partitions_for(sizes: Sequence[int], world_size: int) -> list[Partition]:
    """The partitions that are divided among `world_size` ranks.

    Each row group with rows is one. If there are fewer of them than ranks, all rows are cut into
    `world_size` ranges that differ by one row at most.
    """
    if not needs_repartitioning(sizes, world_size):
        return [(Piece(group, 0, size),) for group, size in enumerate(sizes) if size]
    *starts, total = accumulate(sizes, initial=0)
    ranges = []
    for part in range(world_size):
        begin, end = part * total // world_size, (part + 1) * total // world_size
        pieces = (
            Piece(group, max(begin - start, 0), min(end - start, size))
            for group, (start, size) in enumerate(zip(starts, sizes, strict=True))
        )
        ranges.append(tuple(piece for piece in pieces if piece.rows > 0))
    return [pieces for pieces in ranges if pieces]


def needs_repartitioning(sizes: Sequence[int], world_size: int) -> bool:
    """Whether there are fewer row groups with rows than ranks. `sizes`: rows per row group."""
    return sum(size > 0 for size in sizes) < world_size


def assign(sizes: Sequence[int], world_size: int) -> list[list[int]]:
    """Which partitions each rank gets: the largest first, each to the rank with the fewest rows.

    Among partitions of one size the earlier goes first. The rows per rank depend on the sizes
    only, not on their order. (Graham 1969: at worst 4/3 of the best largest load; with equal sizes
    it is the best.) Contiguous blocks of ceil(5 / 4) partitions would give 2, 2, 1, 0.
    """
    loads = [(0, rank) for rank in range(world_size)]  # a heap
    assigned: list[list[int]] = [[] for _ in range(world_size)]
    for partition in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        load, rank = heapq.heappop(loads)
        assigned[rank].append(partition)
        heapq.heappush(loads, (load + sizes[partition], rank))
    return assigned


def stream(*key: int) -> random.Random:
    """A random generator for each key: seed 0 in epoch 1 is not seed 1 in epoch 0."""
    return random.Random("/".join(map(str, key)))


def rows_so_far(rows_by_rank: Sequence[int], seen: int) -> list[int]:
    """How many rows each rank has returned when all ranks together have returned `seen`.

    Every rank spreads its rows evenly over the epoch: a rank's row i of n comes at (2i + 1) / 2n of
    it, ties go to the lower rank, and a global batch is the next `batch_size` rows in this order.
    So no rank runs out of rows before the others. (The divisor method of Webster and Sainte-Laguë.)
    """
    total, world_size = sum(rows_by_rank), len(rows_by_rank)
    # The rows that come before the place (seen - world_size / 2) / total: a few too few.
    early = 2 * seen - world_size
    counts = [max(0, (early * rows + total) // (2 * total)) for rows in rows_by_rank]

    def place(rank: int) -> tuple[Fraction, int]:
        return Fraction(2 * counts[rank] + 1, rows_by_rank[rank]), rank  # of its next row

    following = [place(rank) for rank, rows in enumerate(rows_by_rank) if counts[rank] < rows]
    heapq.heapify(following)
    for _ in range(seen - sum(counts)):
        _, rank = heapq.heappop(following)
        counts[rank] += 1
        if counts[rank] < rows_by_rank[rank]:
            heapq.heappush(following, place(rank))
    return counts


def fixed_size(rows: int, row_group_size: int) -> list[int]:
    """Rows per row group when all have this size and the last has the rest, as pandas writes them.

    There are ceil(rows / row_group_size) of them.
    """
    if row_group_size < 1:
        raise ValueError(f"row_group_size={row_group_size}: a row group has at least one row")
    full, rest = divmod(rows, row_group_size)
    return [row_group_size] * full + [rest] * (rest > 0)


def fixed_number(rows: int, partitions: int) -> list[int]:
    """Rows per row group for this many partitions; they differ by one row at most.

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
    """The numbers of ranks that get whole row groups with nearly equal numbers of rows."""
    even = []
    for ranks in range(1, len(sizes) + 1):
        if len(sizes) % ranks == 0:
            loads = rows_per_rank(sizes, ranks)
            if max(loads) - min(loads) <= 1 or imbalance(loads) <= EVENLY:
                even.append(ranks)
    return even


def rows_per_rank(sizes: Sequence[int], world_size: int) -> list[int]:
    """Rows per rank when whole row groups are assigned."""
    return [sum(sizes[i] for i in own) for own in assign(sizes, world_size)]


def imbalance(rows_by_rank: Sequence[int]) -> float:
    """The largest number of rows of a rank divided by their mean: 1.0 is even."""
    return max(rows_by_rank) * len(rows_by_rank) / sum(rows_by_rank)


def suggested_partitions(rows: int, partitions: int, world_size: int) -> int:
    """A number of partitions that serves this many ranks evenly: a multiple, four each or more."""
    per_rank = max(4, -(-partitions // world_size))
    return world_size * max(1, min(per_rank, rows // world_size))
