"""Which rank reads which rows of a Parquet file in an epoch, decided from its metadata alone.

A Parquet file consists of row groups. Here they are the partitions that ranks share out. Every
rank calls these functions with the same numbers and so comes to the same plan: nothing is sent.

    plan = epoch_plan([100, 100, 100, 40], 2, seed=0, epoch=0)
    plan[1]    # what rank 1 reads, in this order: (Piece(group=1, start=0, stop=100), ...)

Read `partition_feed.py` next: it turns a plan into batches.
"""

import heapq
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction


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
"""What is given to a rank as a whole: one row group, or after a repartitioning parts of some."""


def rows_in(pieces: Iterable[Piece]) -> int:
    """How many rows these pieces have together."""
    return sum(piece.rows for piece in pieces)


def needs_repartitioning(sizes: Sequence[int], world_size: int) -> bool:
    """Whether there are fewer row groups with rows than ranks. `sizes`: rows per row group."""
    return sum(size > 0 for size in sizes) < world_size


def partitions_for(sizes: Sequence[int], world_size: int) -> list[Partition]:
    """The partitions that `world_size` ranks share out.

    Each row group is one; a row group without rows is none. Where that gives fewer partitions than
    ranks, all rows are cut into `world_size` ranges that differ by one row at most.
    """
    if needs_repartitioning(sizes, world_size):
        return cut(sizes, world_size)
    return [(Piece(group, 0, size),) for group, size in enumerate(sizes) if size]


def cut(sizes: Sequence[int], parts: int) -> list[Partition]:
    """All rows in `parts` ranges of consecutive rows; those that would be empty are left out."""
    total, starts = sum(sizes), list(starts_of(sizes))
    ranges = []
    for part in range(parts):
        begin, end = part * total // parts, (part + 1) * total // parts
        pieces = (
            Piece(group, max(begin - start, 0), min(end - start, size))
            for group, (start, size) in enumerate(zip(starts, sizes, strict=True))
        )
        ranges.append(tuple(piece for piece in pieces if piece.rows > 0))
    return [pieces for pieces in ranges if pieces]


def starts_of(sizes: Iterable[int]) -> Iterable[int]:
    """The number of the first row of each: 100, 100, 40 begin at 0, 100, 200."""
    start = 0
    for size in sizes:
        yield start
        start += size


def deal(sizes: Sequence[int], world_size: int) -> list[list[int]]:
    """Which partitions each rank gets: the largest first, each to the rank with the fewest rows.

    Among partitions of one size the earlier goes first. The rows per rank depend on the sizes
    only, not on their order. (Graham 1969: at worst 4/3 of the best largest load; with equal sizes
    it is the best.) Contiguous blocks of ceil(5 / 4) partitions would give 2, 2, 1, 0.
    """
    loads = [(0, rank) for rank in range(world_size)]  # a heap
    hands: list[list[int]] = [[] for _ in range(world_size)]
    for partition in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        load, rank = heapq.heappop(loads)
        hands[rank].append(partition)
        heapq.heappush(loads, (load + sizes[partition], rank))
    return hands


def epoch_plan(
    sizes: Sequence[int], world_size: int, *, seed: int = 0, epoch: int = 0, shuffle: bool = True
) -> list[Partition]:
    """What each rank reads in an epoch, in order; every row stands in it once.

    `sizes`: rows per row group. With `shuffle`, an epoch deals the partitions anew and reads them
    in another order; the number of rows per rank stays.
    """
    partitions = partitions_for(sizes, world_size)
    if shuffle:
        stream(seed, epoch).shuffle(partitions)
    hands = deal([rows_in(partition) for partition in partitions], world_size)
    plan = []
    for rank, hand in enumerate(hands):
        if shuffle:  # else a short last row group would always be read last
            stream(seed, epoch, rank).shuffle(hand)
        plan.append(tuple(piece for index in hand for piece in partitions[index]))
    return plan


def stream(*key: int) -> random.Random:
    """Random numbers of their own for each key: seed 0 in epoch 1 is not seed 1 in epoch 0."""
    return random.Random("/".join(map(str, key)))


def imbalance(rows_by_rank: Sequence[int]) -> float:
    """The largest number of rows of a rank over their mean: 1.0 is even."""
    return max(rows_by_rank) * len(rows_by_rank) / sum(rows_by_rank)


def rows_so_far(rows_by_rank: Sequence[int], seen: int) -> list[int]:
    """How many rows each rank has given when all together have given `seen` of them.

    Every rank spreads its rows evenly over the epoch: a rank's row i of n stands at (2i + 1) / 2n
    of it, ties go to the lower rank, and a global batch is the next `batch_size` rows in this
    order. So no rank runs dry before the others. (The divisor method of Webster and Sainte-Laguë.)
    """
    total, world_size = sum(rows_by_rank), len(rows_by_rank)
    # The rows that stand before the place (seen - world_size / 2) / total: a few too few.
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


def suggested_partitions(rows: int, partitions: int, world_size: int) -> int:
    """A number of partitions that serves this many ranks evenly: a multiple, four each or more."""
    per_rank = max(4, -(-partitions // world_size))
    return world_size * max(1, min(per_rank, rows // world_size))
