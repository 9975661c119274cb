"""Calls and ranks in words."""

from collections import defaultdict
from collections.abc import Sequence

from multigpu.ranks.calls import REDUCTIONS, ROOTED, Call
from multigpu.ranks.states import RankState
from multigpu.ranks.wording import counted, listed, ordinal, ranks_in_words


def described(call: Call) -> str:
    """A collective in words: `all_reduce (sum) of 3 float32`."""
    words = call.op
    if call.via not in ("", call.op):
        words += f" by {call.via}"
    if call.op in REDUCTIONS and call.reduce:
        words += f" ({call.reduce})"
    if call.wanted:
        words += f" of {ranks_in_words(call.wanted)}"
    if call.op not in ("barrier", "new_group"):
        words += f" of {amount(call)}"
    if call.op in ROOTED and call.root is not None:
        words += f" {'from' if call.op in ('broadcast', 'scatter') else 'to'} rank {call.root}"
    return words


def amount(call: Call) -> str:
    """`3 float32`, or `2 × 3 float32` with the shape where it says more."""
    shapes = set(call.shapes)
    if len(call.shapes) == 1 and len(call.shapes[0]) > 1:
        return f"{call.numel:,} {call.dtype} {list(call.shapes[0])}"
    many = f" in {len(call.shapes)} tensors" if len(call.shapes) > 1 and shapes else ""
    return f"{call.numel:,} {call.dtype}{many}"


def what_each_does(states: Sequence[RankState], core: Sequence[Call] = ()) -> list[str]:
    """A line for what each rank waits in or how it ended, ranks that do the same in one.

    `core` are the calls of which the count matters for a rank that is over.
    """
    said: dict[tuple[str, str], list[int]] = defaultdict(list)  # what one does, what several do
    for state in states:
        for call in state.waiting_in():
            waiting = (_waiting(call, state, len(states), its) for its in ("its", "their"))
            one, several = waiting
            said[f"waits {one}", f"wait {several}"].append(state.rank)
        if state.over:
            said[(f"returned {_after(state, core)}",) * 2].append(state.rank)
    return [
        f"  {ranks_in_words(ranks)} {one if len(set(ranks)) == 1 else several}"
        for (one, several), ranks in said.items()
    ]


def _waiting(call: Call, state: RankState, world: int, its: str) -> str:
    by = f" ({call.via})" if call.via not in ("", call.op) else ""
    tag = f" with tag {call.tag}" if call.tag else ""  # nearly all messages have tag 0
    if call.op == "send":
        what = f"for rank {call.peer} to receive {amount(call)}{tag}{by}"
    elif call.op == "recv":
        source = "any rank" if call.peer is None else f"rank {call.peer}"
        what = f"for a message from {source}{tag}{by}"
    else:
        made = [c.id for c in state.calls.values() if (c.op, c.group) == (call.op, call.group)]
        number = ordinal(1 + made.index(call.id))
        what = f"in {its} {number} {call.op}{by}{call.in_group(world)}"
    return f"{what}, {call.place}"


def _after(state: RankState, core: Sequence[Call]) -> str:
    """What a rank that is over had done of what the others wait for."""
    kinds = list(dict.fromkeys((call.op, call.group) for call in core if call.nth is not None))
    made = [(state.own_calls(op, group), op) for op, group in kinds]
    if not made:
        last = state.last_call()
        return f"after {last.via} at {last.place}" if last else "without any call"
    if not any(number for number, _ in made):
        return f"without {listed(f'any {op}' for _, op in made)}"
    return f"after {listed(counted(number, op) for number, op in made)}"
