"""How much of a run's time and how many of its bytes are communication, read from its trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from multigpu.ranks.trace import Call, Trace
from multigpu.scaling.traffic import all_reduce_bytes

Window = tuple[float, float]  # begin and end, time.monotonic
SHARING = ("all_reduce", "reduce_scatter", "all_gather")  # gradients, and sharded parameters
HALVES = ("reduce_scatter", "reduce", "all_to_all", "broadcast", "scatter", "gather")


def all_reduce_share(trace: Trace, windows: Sequence[Window]) -> float:
    """The share of the time in which a rank has an all-reduce under way, the mean over ranks.

    With sharding: a reduce-scatter or an all-gather, which an all-reduce consists of. `windows[r]`
    is the part of rank r's time that counts. Waiting for a slower rank is part of it,
    and so is what a backward pass computes meanwhile: it says how much there is to hide, not
    how much is hidden.
    """
    shares = []
    for rank, (begin, end) in enumerate(windows):
        open_times = [
            (max(call.time, begin), min(call.completed or call.end or end, end))
            for call in trace.collectives(rank)
            if call.op in SHARING
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
    """Bytes that all ranks together send in one step, if each collective goes round a ring.

    Counted are gradients, sharded parameters, and messages from rank to rank. What each rank brings
    to a collective is read from rank 0's part of the trace, in the window of rank 0 that holds
    `steps` steps.
    """
    part = trace.since(window[0], until=window[1])
    collectives = [call for call in part.collectives(0) if call.op in SHARING]
    shared = sum(len(call.members) * ring_bytes(call) for call in collectives)
    messages = sum(call.bytes for call in part.messages() if call.op == "send")
    return round((shared + messages) / steps)


def sent_by_kind(trace: Trace, rank: int = 0) -> dict[str, float]:
    """Bytes that a rank sends for each kind of call, if collectives go round a ring.

    A collective with a root passes its bytes on from rank to rank; the mean over ranks counts.
    """
    sent: dict[str, float] = defaultdict(float)
    for call in trace.of(rank):
        if size := ring_bytes(call):
            sent[call.op] += size
    return dict(sent)


def ring_bytes(call: Call) -> float:
    """Bytes that one rank sends in a ring for a call: n ranks, b bytes of input.

    All-reduce 2 (n - 1)/n · b; reduce-scatter, and on average a collective with a root, half of it;
    all-gather, whose input is one part of n, (n - 1) · b. A send is its own bytes.
    """
    ranks = len(call.members)
    if call.op == "send":
        return call.bytes
    if call.op == "all_reduce":
        return all_reduce_bytes(ranks, call.bytes)
    if call.op == "all_gather":
        return (ranks - 1) * call.bytes
    if call.op in HALVES:
        return (ranks - 1) / ranks * call.bytes
    return 0.0
