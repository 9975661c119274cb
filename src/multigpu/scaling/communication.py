"""How much of a run's time and how many of its bytes are communication, read from its trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from multigpu.ranks.trace import Trace
from multigpu.scaling.traffic import all_reduce_bytes

Window = tuple[float, float]  # begin and end, time.monotonic


def all_reduce_share(trace: Trace, windows: Sequence[Window]) -> float:
    """The share of the time in which a rank has an all-reduce under way, the mean over ranks.

    `windows[r]` is the part of rank r's time that counts. Waiting for a slower rank is part of it,
    and so is what a backward pass computes meanwhile: it says how much there is to hide, not
    how much is hidden.
    """
    shares = []
    for rank, (begin, end) in enumerate(windows):
        open_times = [
            (max(call.time, begin), min(call.completed or call.end or end, end))
            for call in trace.collectives(rank)
            if call.op == "all_reduce"
        ]
        shares.append(length_of_union(open_times) / (end - begin))
    return sum(shares) / len(shares)


def length_of_union(spans: Iterable[Window]) -> float:
    """How long at least one of the spans lasts; those that end before they begin do not count."""
    total, covered = 0.0, float("-inf")
    for begin, end in sorted(spans):
        begin = max(begin, covered)
        if end > begin:
            total += end - begin
            covered = end
    return total


def bytes_between_ranks(trace: Trace, window: Window, *, steps: int) -> int:
    """Bytes that all ranks together send in one step, if each all-reduce goes round a ring.

    What each rank brings is read from the trace, in the window of rank 0 that holds `steps` steps.
    """
    begin, end = window
    brought = sum(
        call.bytes
        for call in trace.collectives(0)
        if call.op == "all_reduce" and begin <= call.time < end
    )
    ranks = trace.world_size
    return round(ranks * all_reduce_bytes(ranks, brought / steps))
