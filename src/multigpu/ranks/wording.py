"""Calls and ranks in words, and what a mismatch or a deadlock usually means."""

from collections import defaultdict
from collections.abc import Sequence

from multigpu.ranks.errors import a, counted, listed, ordinal, ranks_in_words
from multigpu.ranks.state import RankState
from multigpu.ranks.trace import REDUCTIONS, ROOTED, Call


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


ORDER = (
    "the ranks make their collectives in different orders, or one of them left one out or made "
    "one more. Every rank must make the same collectives in the same order."
)


def usually_differ(name: str, sides: Sequence[Sequence[Call]]) -> str:
    """Why calls that meet may differ in `name`; `sides` are those that agree with each other."""
    calls = [call for side in sides for call in side]
    places = {(call.file, call.line) for call in calls}
    if name in ("members", "wanted"):
        return (
            "the ranks called new_group with different lists of ranks. Every rank must make every "
            "group, with the same list, in the same order, also those it is not in."
        )
    if name == "root":
        if all(call.root == call.rank for call in calls):
            return "each rank named itself. All ranks must name the same root."
        return "all ranks must name the same root; it was computed from something that differs."
    if name == "reduce":
        return "`op` must be the same on all ranks."
    if name == "op" or len(places) > 1:
        return ORDER
    if name == "dtype":
        return (
            "the tensor was made or converted in another way on one rank (a Python number, "
            ".float(), .half()). Every rank must bring the same dtype."
        )
    return (
        "the ranks hold pieces of different sizes (uneven batches, a shorter last one): pad, or "
        "exchange the sizes first. Or they take the same tensors in different orders."
    )


def usually_message(send: Call, receive: Call) -> str:
    """Why a message does not fit into its receiver's buffer."""
    if send.dtype != receive.dtype:
        return (
            "one side uses another dtype: torch.zeros(shape) is float32, whatever is sent. "
            "torch.empty_like(tensor) has the tensor's dtype."
        )
    return (
        "the two ranks computed different sizes, or the messages are in another order on one side."
    )


def usually_fewer(call: Call, ranks: Sequence[int]) -> str:
    """Why only `ranks` made `call`, although nobody was blocked."""
    if call.is_async and call.waited is None:
        return (
            f"{ranks_in_words(ranks)} never waited for it, or it would have hung: the others do "
            "not take part."
        )
    if call.op == "new_group":
        return "every rank must call new_group, also those that will not be in the group."
    return "one rank left a collective out, or made one more; nobody noticed because nobody waited."


def usually_deadlock(
    core: Sequence[Call],
    waits: Sequence[Call],
    *,
    missing: Sequence[RankState],
    states: Sequence[RankState],
) -> str:
    """Why no rank can go on: `core` are the waits at the heart of it, among all `waits`.

    `missing` are the ranks that have not come to a collective.
    """
    collectives = [call for call in core if call.nth is not None]
    messages = [call for call in core if call.is_message]
    if any(call.peer == call.rank for call in messages):
        return "a rank waits for a message from or to itself."
    if messages and (said := _crossed(messages, waits) or _all_alike(messages)):
        return said
    if collectives and missing:
        return _about_collectives(collectives, missing)
    call = next((call for call in messages if call.peer is not None), None)
    if call is not None and call.peer is not None and states[call.peer].over:
        side = "received" if call.op == "send" else "sent"
        return (
            f"rank {call.peer} never {side} it: the two sides of a message need each other, with "
            "the same ranks and the same tag."
        )
    return "one rank took another branch than the others, and they wait for each other."


def _crossed(messages: Sequence[Call], waits: Sequence[Call]) -> str | None:
    """A send and a receive that just miss each other."""
    sends = [call for call in waits if call.op == "send"]
    receives = [call for call in messages if call.op == "recv"]
    for send, receive in ((s, r) for s in sends for r in receives if r.rank == s.peer):
        if receive.peer == send.rank and receive.tag != send.tag:
            return (
                f"the tags differ: rank {send.rank} sends with tag {send.tag}, rank "
                f"{receive.rank} receives with tag {receive.tag}."
            )
        if receive.peer not in (send.rank, None):
            return (
                f"rank {receive.rank} receives from the wrong rank (rank {send.rank} is the "
                f"one that sends to it), or rank {receive.peer} never sent."
            )
    return None


def _all_alike(messages: Sequence[Call]) -> str | None:
    """A ring in which all do the same first."""
    kinds = {call.op for call in messages}
    waiting = {call.rank for call in messages}
    if len(messages) < 2 or len(kinds) > 1 or not {call.peer for call in messages} <= waiting:
        return None
    if kinds == {"send"}:
        if len({(call.file, call.line) for call in messages}) > 1:
            return (
                "all of them send, in different places, and nobody receives. One side may have "
                "left out a receive and gone on to its next message, perhaps that of a later call. "
                "Go through the sends in order, and find the receive of each."
            )
        return (
            "every rank sends first, and a send waits until it is received. Let some ranks "
            "receive first, or start the sends with isend or batch_isend_irecv and wait later."
        )
    return "every rank receives first, so nobody has sent. Let one rank begin with its send."


def _about_collectives(waits: Sequence[Call], missing: Sequence[RankState]) -> str:
    call = waits[0]
    here = [
        [made for made in state.calls.values() if (made.file, made.line) == (call.file, call.line)]
        for state in missing
    ]
    absent = ranks_in_words(state.rank for state in missing)
    present = ranks_in_words(each.rank for each in waits if each.nth == call.nth)
    if not any(here):
        return (
            f"only {present} came to {call.place}: {a(call.op)} under an `if` that is not true on "
            "every rank, or in a loop that not every rank enters. All members of the group must "
            "call it."
        )
    if all(state.over for state in missing):
        return (
            f"{absent} had fewer batches (or left the loop earlier) than the others. All ranks "
            "must go through the loop equally often."
        )
    if any(_in_another_order(wait, state) for wait in waits for state in missing):
        return (
            "the ranks use their groups in different orders. Ranks that share two groups must "
            "make the collectives of both in the same order."
        )
    return ORDER


def _in_another_order(wait: Call, state: RankState) -> bool:
    """Whether a rank is in a collective of another group that the rank of `wait` must make, too."""
    return any(
        made.group != wait.group and made.nth is not None and wait.rank in made.members
        for made in state.waiting_in()
    )
