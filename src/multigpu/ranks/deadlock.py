"""Proves that no rank can go on, and says who waits for whom and who is to blame.

A deadlock is proven when every rank is over or blocked in all its threads, and no call that a
thread waits for can end: a collective that not all members have begun, a message whose other side
has not been called.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from multigpu.ranks.calls import Call
from multigpu.ranks.findings import Finding
from multigpu.ranks.matching import Key, Matching
from multigpu.ranks.mismatch import amount, minority
from multigpu.ranks.patterns import usually_deadlock
from multigpu.ranks.states import RankState, open_calls
from multigpu.ranks.threads import Threads
from multigpu.ranks.wording import counted, listed, ordinal, ranks_in_words

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
    return not any(state.can_act(threads) for state in states)


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
    blamed = _blamed(core, targets, matching, ends=ends, over=over)
    absent = {r for c in core if c.nth is not None for r in targets[c.rank, c.id]}
    missing = [state for state in states if state.rank in absent & ends]
    return Finding(
        "deadlock",
        tuple(sorted(blamed)),
        "\n".join([_headline(core, targets, over & ends), *_lines(states, core, matching)]),
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
    targets: Targets,
    matching: Matching,
    *,
    ends: set[int],
    over: set[int],
) -> set[int]:
    """Of a collective the minority, there or not there; of a message both sides.

    A message that is missing looks the same whether one side left it out or the other made one
    too many.
    """
    blamed: set[int] = set()
    for call in core:
        others = targets[call.rank, call.id]
        if call.nth is not None:
            there = matching.meeting(call).keys
            blamed |= set(minority([list(there), sorted(others & ends)]))
        elif call.peer is None:  # any other may be the one that did not send
            blamed |= {call.rank} | (set(call.members) & (ends | over))
        else:
            blamed |= {call.rank} | (others & ends)
    return blamed


def _headline(core: Sequence[Call], targets: Targets, over: set[int]) -> str:
    if not over:
        return f"{ranks_in_words(call.rank for call in core)} wait for each other for ever:"
    waiting = {call.rank for call in core if over & targets[call.rank, call.id]}
    has, them = ("has", "it") if len(over) == 1 else ("have", "them")
    waits = "waits" if len(waiting) == 1 else "wait"
    who = f"{ranks_in_words(over)} {has} returned"
    return f"{who}, {ranks_in_words(waiting)} {waits} for {them} for ever:"


def _lines(states: Sequence[RankState], core: Sequence[Call], matching: Matching) -> list[str]:
    """What every rank does, ranks that do the same in one line."""
    said: dict[tuple[str, str], list[int]] = defaultdict(list)
    for state in states:
        for call in state.waiting_in():
            said[_waiting(call, state, len(states))].append(state.rank)
        if state.over:
            said["returned", _after(state, core)].append(state.rank)
    lines = []
    for (verb, rest), ranks in said.items():
        one = len(set(ranks)) == 1
        verb += "s" if one and verb == "wait" else ""
        rest = rest.replace("ITS", "its" if one else "their")
        lines.append(f"  {ranks_in_words(ranks)} {verb} {rest}")
    return lines


def _waiting(call: Call, state: RankState, world: int) -> tuple[str, str]:
    """`wait`, and the rest of the sentence."""
    by = f" ({call.via})" if call.via not in ("", call.op) else ""
    if call.op == "send":
        rest = f"for rank {call.peer} to receive {amount(call)} with tag {call.tag}{by}"
    elif call.op == "recv":
        source = "any rank" if call.peer is None else f"rank {call.peer}"
        rest = f"for a message from {source} with tag {call.tag}{by}"
    else:
        made = [c for c in state.calls.values() if (c.op, c.group) == (call.op, call.group)]
        number = ordinal(1 + [c.id for c in made].index(call.id))
        group = call.in_group(world)
        rest = f"in ITS {number} {call.op}{by}{group}"
    return "wait", f"{rest}, {call.place}"


def _after(state: RankState, core: Sequence[Call]) -> str:
    """What a rank that is over had done of what the others wait for."""
    kinds = list(dict.fromkeys((call.op, call.group) for call in core if call.nth is not None))
    made = [(state.own_calls(op, group), op) for op, group in kinds]
    if not made:
        last = state.last_call()
        return f"after its {last.via} at {last.place}" if last else "without any call"
    if not any(number for number, _ in made):
        return f"without {listed(f'any {op}' for _, op in made)}"
    return f"after {listed(counted(number, op) for number, op in made)}"
