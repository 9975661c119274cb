"""What went well with gloo and would not with NCCL, found in the trace of a run.

    for sentence in differences(results.trace):
        print(sentence)

Gloo works on an isend while the program goes on to receive, and it takes the collectives of two
groups in any order. NCCL runs the calls between two ranks one after the other on the GPU: a send is
over when it is received, and what comes after it has to wait. In a traced run a result is there at
wait() and not before, so that a program gives the same each time; NCCL writes it at some moment
before.
(docs.nvidia.com/deeplearning/nccl: "Point-to-point communication", "Using multiple communicators")
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations, pairwise

from multigpu.ranks.calls import GROUPED, Call
from multigpu.ranks.trace import Trace


def differences(trace: Trace) -> Iterator[str]:
    """A sentence for each mistake that shows with NCCL only."""
    used = dict.fromkeys((c.used, c.op, c.place) for c in trace.calls if c.used)
    for where, op, place in used:
        yield (
            f"{where} uses the result of {op} ({place}) before wait(). With NCCL the numbers may be"
            " those of before, of after, or some of each. Wait first."
        )
    for one, other in combinations(range(trace.world_size), 2):
        groups = dict.fromkeys(call.group for call in trace.messages(one))
        found = [crossed_messages(trace, one, other, group) for group in groups]
        yield from filter(None, [*found, crossed_groups(trace, one, other)])


def crossed_messages(trace: Trace, one: int, other: int, group: str) -> str:
    """Two ranks that send to each other before either receives; empty if there are none.

    In another group they are on another stream, where they do not wait for these.
    """
    waiting = {
        rank: [call for call in trace.messages(rank) if (call.peer, call.group) == (peer, group)]
        for rank, peer in ((one, other), (other, one))
    }
    while all(waiting.values()):
        heads = {rank: together(calls) for rank, calls in waiting.items()}
        pair = next(
            (
                (mine, theirs)
                for mine in heads[one]
                for theirs in heads[other]
                if {mine.op, theirs.op} == {"send", "recv"}
            ),
            None,
        )
        if pair is None:
            mine, theirs = heads[one][0], heads[other][0]
            both = "send to" if mine.op == "send" else "receive from"
            return (
                f"ranks {one} and {other} both {both} each other first ({mine.place} and "
                f"{theirs.place}). Gloo works on both calls of a rank at once; with NCCL the "
                f"second never begins. Let one rank receive first, or start both with {GROUPED}."
            )
        for call in pair:
            waiting[call.rank].remove(call)
    return ""


def together(calls: list[Call]) -> list[Call]:
    """Those at the beginning that NCCL starts together: one, or all of a `batch_isend_irecv`.

    Batches are told apart by their lines only. Several batches that one line makes in a loop count
    as one, so that messages of different batches which cross are not found.
    """
    first = calls[0]
    if first.via != GROUPED:
        return [first]
    alike = (call.via == GROUPED and call.line == first.line for call in calls)
    count = next((i for i, same in enumerate(alike) if not same), len(calls))
    return calls[:count]


def crossed_groups(trace: Trace, one: int, other: int) -> str:
    """Two ranks that use two of their groups in another order; empty if there are none."""
    order: dict[int, dict[tuple[str, int | None], int]] = defaultdict(dict)
    calls: dict[tuple[int, str, int | None], Call] = {}
    for rank in (one, other):
        for call in trace.collectives(rank):
            if {one, other} <= set(call.members) and call.op != "new_group":
                order[rank][call.group, call.nth] = len(order[rank])
                calls[rank, call.group, call.nth] = call
    shared = sorted(order[one].keys() & order[other].keys(), key=lambda key: order[one][key])
    for before, after in pairwise(shared):
        if order[other][before] > order[other][after]:
            first, second = calls[one, *before], calls[one, *after]
            return (
                f"rank {one} calls {first.op} of one group ({first.place}) before {second.op} of "
                f"another ({second.place}), and rank {other} the other way round. Gloo permits "
                "that; with NCCL it can stop both. Use the groups in the same order on all ranks."
            )
    return ""
