"""The texts of findings: calls and ranks in words, and what usually causes a finding."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from multigpu.ranks.calls import REDUCTIONS, ROOTED, Call
from multigpu.ranks.errors import (
    counted,
    listed,
    ordinal,
    place,
    ranks_in_words,
    signal_name,
    their_frames,
)
from multigpu.ranks.state import RankState


def described(call: Call) -> str:
    """A collective in words: `all_reduce (sum) of 3 float32`."""
    words = call.op
    if call.via != call.op:
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
    """A line for each rank's wait or end; ranks that do the same share a line.

    `core` are the calls whose count matters for a rank that is over.
    """
    said: dict[tuple[str, str], list[int]] = defaultdict(list)  # what one does, what several do
    for state in states:
        for call in state.waiting_in():
            one, several = (_waiting(call, len(states), its) for its in ("its", "their"))
            said[f"waits {one}", f"wait {several}"].append(state.rank)
        if state.over:
            said[(f"returned {_after(state, core)}",) * 2].append(state.rank)
    return [
        f"  {ranks_in_words(ranks)} {one if len(set(ranks)) == 1 else several}"
        for (one, several), ranks in said.items()
    ]


def _waiting(call: Call, world: int, its: str) -> str:
    by = f" ({call.via})" if call.via != call.op else ""
    tag = f" with tag {call.tag}" if call.tag else ""  # nearly all messages have tag 0
    if call.op == "send":
        what = f"for rank {call.peer} to receive {amount(call)}{tag}{by}"
    elif call.op == "recv":
        source = "any rank" if call.peer is None else f"rank {call.peer}"
        what = f"for a message from {source}{tag}{by}"
    else:
        what = f"in {its} {ordinal(call.nth_alike)} {call.op}{by}{call.in_group(world)}"
    return f"{what}, {call.place}"


def _after(state: RankState, core: Sequence[Call]) -> str:
    """How many of the calls that the others wait for a finished rank had made."""
    kinds = list(dict.fromkeys((call.op, call.group) for call in core if call.nth is not None))
    made = [(state.made[op, group], op) for op, group in kinds]
    if not made:
        last = state.last
        return f"after {last.via} at {last.place}" if last else "without any call"
    if not any(number for number, _ in made):
        return f"without {listed((f'any {op}' for _, op in made), most=None)}"
    return f"after {listed((counted(number, op) for number, op in made), most=None)}"


# Ranks that raised or ended.

EXITS = "a rank that exits early leaves the others waiting in their next collective."
UNCAUGHT = (
    "an exception ends only its own thread, so the rank continues without that thread's work. "
    "Fix the exception first."
)
SIGNALS = {
    "SIGKILL": "the machine ran out of memory and the system killed this process, or somebody "
    "killed it by hand.",
    "SIGSEGV": "compiled code read invalid memory: a faulty extension or a broken installation.",
    "SIGBUS": "compiled code wrote to /dev/shm or to a disk that is full.",
    "SIGABRT": "compiled code aborted. Its last message is in the rank's output.",
}


def raised(error: Mapping[str, Any], ranks: Sequence[int]) -> tuple[str, str]:
    """The exception of some ranks, and its usual cause."""
    who, frames = ranks_in_words(ranks), their_frames(error)
    if "SystemExit" in error.get("types", ()):
        where = f", {place(*frames[-1][:2])}" if frames else ""
        return f"{who} called sys.exit({error.get('status', '')}){where}.", EXITS
    what = ": ".join(filter(None, [error["type"], error.get("text", "")]))
    lines = [f"{who}: {what}", *error.get("notes", [])]
    if error.get("traceback"):
        return "\n".join([*lines, error["traceback"].rstrip()]), ""
    for number, (file, line, function) in enumerate(frames[::-1][:3]):
        lines.append(f"{'where:' if number == 0 else '      '} {place(file, line)} in {function}")
    return "\n".join(lines), ""


def raised_in_a_thread(rank: int, error: Mapping[str, Any]) -> str:
    """An exception that ended a thread of a rank; the rank continues, and the others may wait."""
    what = ": ".join(filter(None, [error["type"], error.get("text", "")]))
    frames = their_frames(error)
    return f"in a thread of rank {rank}: {what}{f', {place(*frames[-1])}' if frames else ''}"


def ended(state: RankState, ranks: Sequence[int]) -> tuple[str, str]:
    """How a rank and those like it ended, and the usual cause."""
    who, after = ranks_in_words(ranks), ""
    if state.left is not None:
        at = f", {place(*state.left['where'])}" if state.left.get("where") else ""
        return f"{who} called os._exit({state.left.get('status')}){at}.", EXITS
    if last := state.last:
        after = f", {'in' if last.is_open else 'after'} its {last.via} at {last.place}"
    if state.status is None or state.status >= 0:
        return f"{who} ended with status {state.status} without returning{after}.", EXITS
    name = signal_name(-state.status)
    return f"{who} was killed by {name}{after}.", SIGNALS.get(name, "")


# Ranks that make no progress.

BUSY = (
    "an endless loop, a lock that is never released, or work that takes more than `timeout` "
    "seconds without a collective."
)
ALL_WAIT = (
    "a thread that sleeps or polls hides that the others wait forever. Or all ranks are in a call "
    "that the backend cannot finish, because it is very big or the tensors do not fit."
)
LINGERS = (
    "a thread, a child process or an atexit function that keeps running after the function has "
    "returned. Let it end first, or start the thread with `daemon=True`."
)


def no_progress(
    ranks: Sequence[int], seconds: float, states: Sequence[RankState], *, returned: bool
) -> str:
    """Some ranks reported nothing for `seconds`; what each rank does."""
    what = "returned, but did not end" if returned else "made no progress"
    return "\n".join(
        [f"{ranks_in_words(ranks)} {what} for {seconds:g} s.", *what_each_does(states)]
    )


# Calls that do not fit.

ORDER = (
    "the ranks call their collectives in different orders, or one rank skipped a collective or "
    "called an extra one. Every rank must call the same collectives in the same order."
)


def collectives_differ(
    name: str, sides: Sequence[Sequence[Call]], states: Sequence[RankState]
) -> tuple[str, str]:
    """How the calls of one match differ, first in `name`; `sides` are those that agree."""
    first = sides[0][0]
    assert first.nth is not None
    nth = f"{ordinal(first.nth + 1)} collective{first.in_group(len(states))}"
    lines = [f"the {nth} is not the same on all ranks:"]
    for side in sides:
        by_place: dict[tuple[str, int, str], list[Call]] = defaultdict(list)
        for call in side:
            by_place[call.file, call.line, described(call)].append(call)
        for same in by_place.values():
            who = ranks_in_words(call.rank for call in same)
            lines.append(f"  {who}: {described(same[0])}, {same[0].place}")
    calls = [call for side in sides for call in side]
    one_line = len({(call.file, call.line) for call in calls}) == 1
    if name == "root" and all(call.root == call.rank for call in calls):
        usually = "each rank passed its own rank as the root. All ranks must pass the same root."
    elif name == "op" or (name in ("dtype", "numel") and not one_line):
        usually = fewer_steps(sides, states) or ORDER
    else:
        usually = DIFFER[name]
    return "\n".join(lines), usually


DIFFER = {
    "wanted": "the ranks called new_group with different lists of ranks. Every rank must create "
    "every group, with the same list and in the same order, including groups it is not in.",
    "root": "all ranks must pass the same root, but it was computed from something that differs.",
    "reduce": "`op` must be the same on all ranks.",
    "dtype": "the tensor was created or converted differently on one rank (a Python number, "
    ".float(), .half()). Every rank must pass the same dtype.",
    "numel": "the ranks hold pieces of different sizes (uneven batches, a shorter last one): pad, "
    "or exchange the sizes first. Or they pass the same tensors in different orders.",
}


def fewer_steps(sides: Sequence[Sequence[Call]], states: Sequence[RankState]) -> str:
    """The counts, where some ranks have gone on to a new line, and others call at one that both
    know. The first may have left a loop early. Empty for other differences.
    """
    if len(sides) > 2:
        return ""
    for inside, left in (sides, sides[::-1]):
        one = inside[0]
        count = states[one.rank].places[one.file, one.line, one.group]
        made = {states[call.rank].places[one.file, one.line, one.group] for call in left}
        known = any(
            states[other.rank].places[call.file, call.line, call.group]
            for other in inside
            for call in left
        )
        if len(made) == 1 and 0 < min(made) < count and not known:
            ahead = ranks_in_words(call.rank for call in left)
            return (
                f"{ahead} made {counted(min(made), 'call')} at {one.place}, and rank {one.rank} "
                f"made {count}. If that is a loop, {ahead} had fewer batches, which "
                "DistributedSampler, drop_last=True or DistributedDataParallel's join() prevents. "
                f"Otherwise {ORDER}"
            )
    return ""


def message_differs(send: Call, receive: Call) -> tuple[str, str]:
    """How a message does not fit its receiver's buffer, and the usual cause."""
    message = (
        f"rank {send.rank} sends {amount(send)} to rank {receive.rank}, {send.place}, "
        f"but rank {receive.rank} receives {amount(receive)}, {receive.place}."
    )
    if send.dtype != receive.dtype:
        return message, (
            "the two sides use different dtypes. torch.zeros(shape) is float32, whatever is sent; "
            "torch.empty_like(tensor) has the tensor's dtype."
        )
    return message, (
        "the two ranks computed different sizes, or one side has its messages in another order."
    )


def fewer_collectives(
    camps: Mapping[int, Sequence[int]], call: Call, world_size: int
) -> tuple[str, str]:
    """Ranks made different numbers of collectives; `camps` are the ranks by their number.

    `call` is the first that some did not make, although no rank was blocked.
    """
    said = [f"{ranks_in_words(ranks)} made {count}" for count, ranks in sorted(camps.items())]
    most = ranks_in_words(camps[max(camps)])
    message = (
        f"the ranks made different numbers of collectives{call.in_group(world_size)}: "
        f"{listed(said, most=None)}.\n  only {most}: {described(call)}, {call.place}"
    )
    if call.is_async and call.waited is None:
        return message, (
            f"{most} never waited for it. A wait would hang, because the others do not take part."
        )
    return message, (
        "one rank skipped a collective or called an extra one. Nothing hung because no rank waited."
    )


UNMATCHED = "the matching call is missing, or it names another rank or another tag."


def unmatched_message(call: Call) -> tuple[str, str]:
    """A message has no matching send or receive."""
    other = f"rank {call.peer}" if call.peer is not None else "any rank"
    if call.op == "send":
        said = f"rank {call.rank} sent {amount(call)} to {other} that {other} never received"
    else:
        said = f"rank {call.rank} began to receive {amount(call)} from {other}, which sent nothing"
    return f"{said}: {call.via}, {call.place}.", UNMATCHED


# Ranks that wait for each other.


def deadlock(
    core: Sequence[Call],
    targets: Mapping[Call, set[int]],
    over: set[int],
    states: Sequence[RankState],
) -> str:
    """Which ranks wait for which: `core` are the calls, `targets` the ranks that each waits for.

    `over` are ranks that others wait for and that have returned.
    """
    ring = {call.rank for call in core}
    if over:
        waiting = {call.rank for call in core if over & targets[call]}
        has, them = ("has", "it") if len(over) == 1 else ("have", "them")
        waits = "waits" if len(waiting) == 1 else "wait"
        others = ranks_in_words(waiting)
        who = f"{ranks_in_words(over)} {has} returned, and {others} {waits} for {them}"
    else:
        wait = "wait for each other" if len(ring) > 1 else "waits for itself"
        who = f"{ranks_in_words(ring)} {wait}"
    return "\n".join([f"{who} forever:", *what_each_does(states, core)])


def usually_deadlock(core: Sequence[Call], missing: Sequence[RankState]) -> str:
    """Why no rank can continue: `core` are the waits of the deadlock.

    `missing` are the ranks that have not reached a collective.
    """
    collectives = [call for call in core if call.nth is not None]
    messages = [call for call in core if call.is_message]
    if messages and (said := _all_alike(messages)):
        return said
    if collectives and missing:
        return _about_collectives(collectives, missing)
    if messages:
        return UNMATCHED
    return "one rank took a different branch from the others, so they wait for each other."


def _all_alike(messages: Sequence[Call]) -> str | None:
    """A ring in which all do the same first."""
    kinds = {call.op for call in messages}
    waiting = {call.rank for call in messages}
    if len(messages) < 2 or not {call.peer for call in messages} <= waiting:
        return None
    if kinds == {"recv"}:
        return "every rank receives first, so no message has been sent. Let one rank send first."
    if kinds == {"send"}:
        one_line = len({(call.file, call.line) for call in messages}) == 1
        all_send = "every rank sends first" if one_line else "all of them send"
        return (
            f"{all_send}, and a send waits until it is received. Let some ranks receive first, or "
            "start the sends with isend or batch_isend_irecv and wait later."
        )
    return None


def _about_collectives(waits: Sequence[Call], missing: Sequence[RankState]) -> str:
    call = waits[0]
    a_call = f"{'an' if call.op.startswith('a') else 'a'} {call.op}"
    absent = ranks_in_words(state.rank for state in missing)
    present = ranks_in_words(each.rank for each in waits if each.nth == call.nth)
    if not any((call.file, call.line, call.group) in state.places for state in missing):
        return (
            f"only {present} reached {call.place}: {a_call} under an `if` that is not true on "
            "every rank, or in a loop that not every rank enters. All members of the group must "
            "call it."
        )
    if all(state.over for state in missing):
        return (
            f"{absent} had fewer batches (or left the loop earlier) than the others. All ranks "
            "must run the loop the same number of times."
        )
    # A missing rank that waits in another group, for a rank that waits for it here.
    others = [call for state in missing for call in state.waiting_in() if call.nth is not None]
    if any(o.group != w.group and w.rank in o.members for o in others for w in waits):
        return (
            "the ranks use their groups in different orders. Ranks that share two groups must "
            "call the collectives of both in the same order."
        )
    return ORDER
