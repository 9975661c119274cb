"""Proves that no rank can go on, and says who waits for whom and who is to blame.

A deadlock is proven when every rank is over or blocked in all its threads, and no call that a
thread waits for can end: a collective that not all members have begun, a message whose other side
has not been called.
"""

from collections.abc import Iterable, Sequence

from multigpu.ranks.calls import Call
from multigpu.ranks.describing import what_each_does
from multigpu.ranks.findings import Finding
from multigpu.ranks.matching import Key, Matching
from multigpu.ranks.mismatch import minority
from multigpu.ranks.patterns import usually_deadlock
from multigpu.ranks.states import RankState, open_calls
from multigpu.ranks.threads import Threads
from multigpu.ranks.wording import ranks_in_words

Targets = dict[Key, set[int]]  # the ranks that a call waits for

QUIET = 0.5  # seconds without a word before a deadlock is looked for
QUIET_PARTLY = 1.0  # where a backend may still be passing data on between some of the ranks


def deadlocked(
    states: Sequence[RankState], matching: Matching, threads: Threads, *, quiet: float
) -> bool:
    """Whether it is certain that nothing will happen any more."""
    if quiet < QUIET:
        return False
    waits = [call for state in states for call in state.waiting_in()]
    if not waits or any(matching.may_complete(call) for call in waits):
        return False
    under_way = (call for call in open_calls(states) if call.nth is not None and call.is_async)
    if any(call.completed is None and matching.may_complete(call) for call in under_way):
        return False  # something may be called when it is over
    partly = [call for call in waits if call.nth is not None]
    if quiet < QUIET_PARTLY and any(
        matching.meeting(call).may_advance(matching.calls) for call in partly
    ):
        return False
    can_act = [state.can_act(threads) for state in states]  # of each: the next look compares
    return not any(can_act)


def deadlock_found(states: Sequence[RankState], matching: Matching) -> Finding:
    """The finding about ranks that wait for each other, or for one that is over."""
    waits = [call for state in states for call in state.waiting_in()]
    over = {state.rank for state in states if state.over}
    targets = {(call.rank, call.id): set(matching.waits_for(call, over)) for call in waits}
    edges: dict[int, set[int]] = {state.rank: set() for state in states}
    for (rank, _), others in targets.items():
        edges[rank] |= others
    ends = _ends_of_waiting(edges)
    core = [c for c in waits if c.rank in ends or over & ends & targets[c.rank, c.id]]
    blamed = _blamed(core, waits, matching, targets, ends=ends, over=over)
    absent = {r for c in core if c.nth is not None for r in targets[c.rank, c.id]}
    missing = [state for state in states if state.rank in absent & ends]
    return Finding(
        "deadlock",
        tuple(sorted(blamed)),
        "\n".join([_headline(core, targets, over & ends), *what_each_does(states, core)]),
        usually_deadlock(core, waits, missing=missing, states=states),
        {
            "ranks": [state.to_dict() for state in states],
            "waits_for": {str(rank): sorted(others) for rank, others in edges.items()},
        },
    )


def _ends_of_waiting(edges: dict[int, set[int]]) -> set[int]:
    """The ranks at the end of the chains: those that are over, and those that wait in a ring."""
    reached = {rank: _reachable(rank, edges) for rank in edges}
    waited_for = {rank for others in edges.values() for rank in others}
    return {
        rank
        for rank in waited_for
        if all(rank in reached[other] or other == rank for other in reached[rank])
    }


def _reachable(rank: int, edges: dict[int, set[int]]) -> set[int]:
    found: set[int] = set()
    todo = list(edges[rank])
    while todo:
        other = todo.pop()
        if other not in found:
            found.add(other)
            todo += edges[other]
    return found


def _blamed(
    core: Iterable[Call],
    waits: Sequence[Call],
    matching: Matching,
    targets: Targets,
    *,
    ends: set[int],
    over: set[int],
) -> set[int]:
    """Of a collective the minority, there (or still before it) or not; of a message both sides.

    A message that is missing looks the same whether one side left it out or the other made one
    too many.
    """
    blamed: set[int] = set()
    for call in core:
        others = targets[call.rank, call.id]
        if call.nth is not None:
            absent = others & ends
            there = {c.rank for c in waits if c.nth is not None and c.group == call.group}
            there |= matching.meeting(call).keys.keys()
            blamed |= set(minority([sorted(there), sorted(absent)]))
        elif call.peer is None:  # any other may be the one that did not send
            blamed |= {call.rank} | (set(call.members) & (ends | over))
        else:
            blamed |= {call.rank} | (others & ends)
    return blamed


def _headline(core: Sequence[Call], targets: Targets, over: set[int]) -> str:
    if not over:
        ring = {call.rank for call in core}
        wait = "wait for each other" if len(ring) > 1 else "waits for itself"
        return f"{ranks_in_words(ring)} {wait} for ever:"
    waiting = {call.rank for call in core if over & targets[call.rank, call.id]}
    has, them = ("has", "it") if len(over) == 1 else ("have", "them")
    waits = "waits" if len(waiting) == 1 else "wait"
    who = f"{ranks_in_words(over)} {has} returned"
    return f"{who}, {ranks_in_words(waiting)} {waits} for {them} for ever:"
