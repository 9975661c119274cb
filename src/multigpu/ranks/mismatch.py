"""Calls that belong together and do not fit: the n-th collective of a group, or a message.

Compared are the operation, the root, the reduction, the dtype and the number of elements, not the
shapes or the lines of code. Blamed is the minority; where it is half and half, both.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from multigpu.ranks import patterns
from multigpu.ranks.calls import REDUCTIONS, ROOTED, Call
from multigpu.ranks.describing import amount, described
from multigpu.ranks.findings import Finding
from multigpu.ranks.wording import listed, ordinal, ranks_in_words

SIZELESS = ("barrier", "new_group", "all_to_all")  # nothing to compare; parts may differ in size


@dataclass(frozen=True)
class Difference:
    """One thing in which calls are compared."""

    name: str
    of: Callable[[Call], Any]
    matters: Callable[[Call], bool] = lambda call: True


DIFFERENCES = (
    Difference("members", lambda call: call.members),
    Difference("op", lambda call: call.op),
    Difference("wanted", lambda call: call.wanted),
    Difference("root", lambda call: call.root, lambda call: call.op in ROOTED),
    Difference("reduce", lambda call: call.reduce, lambda call: call.op in REDUCTIONS),
    Difference(
        "dtype", lambda call: call.dtype, lambda call: call.op not in ("barrier", "new_group")
    ),
    Difference("numel", lambda call: call.numel, lambda call: call.op not in SIZELESS),
)


def difference(one: Call, other: Call) -> str | None:
    """The first thing in which two calls of one meeting differ; None if they fit."""
    for each in DIFFERENCES:
        if each.matters(one) and each.of(one) != each.of(other):
            return each.name
    return None


def minority(camps: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The ranks that are not in the largest camp; all of them if there is no single largest."""
    found = sorted(camps, key=len, reverse=True)
    if len(found) > 1 and len(found[0]) > len(found[1]):
        found = found[1:]
    return tuple(sorted(rank for camp in found for rank in camp))


def collectives_differ(calls: Sequence[Call], world_size: int) -> Finding:
    """The finding about the calls of one meeting, of which two or more differ."""
    camps: dict[tuple[Any, ...], list[Call]] = defaultdict(list)
    for call in calls:
        camps[tuple(d.of(call) if d.matters(call) else None for d in DIFFERENCES)].append(call)
    sides = sorted(camps.values(), key=len, reverse=True)
    name = difference(sides[0][0], sides[1][0])
    assert name is not None, "the calls fit"
    first = calls[0]
    assert first.nth is not None
    group = "" if name == "members" else first.in_group(world_size)
    lines = [f"the {ordinal(first.nth + 1)} collective{group} is not the same on all ranks:"]
    for same in (same for side in sides for same in _by_place(side)):
        who = ranks_in_words(call.rank for call in same)
        group = f" in a group of {ranks_in_words(same[0].members)}" if name == "members" else ""
        lines.append(f"  {who}: {described(same[0])}{group}, {same[0].place}")
    return Finding(
        "mismatch",
        minority([call.rank for call in side] for side in sides),
        "\n".join(lines),
        patterns.usually_differ(name, sides),
        {"difference": name, "group": first.group, "nth": first.nth},
    )


def message_differs(send: Call, receive: Call) -> Finding:
    """The finding about a message that does not fit its receiver's buffer."""
    return Finding(
        "mismatch",
        tuple(sorted({send.rank, receive.rank})),
        f"rank {send.rank} sends {amount(send)} to rank {receive.rank}, {send.place}, "
        f"but rank {receive.rank} receives {amount(receive)}, {receive.place}.",
        patterns.usually_message(send, receive),
        {"difference": "bytes", "group": send.group, "nth": None},
    )


def _by_place(calls: Sequence[Call]) -> list[list[Call]]:
    """Calls of one side, together where they come from the same line."""
    found: dict[tuple[str, int, str], list[Call]] = defaultdict(list)
    for call in calls:
        found[call.file, call.line, described(call)].append(call)
    return list(found.values())


def fewer_collectives(calls: Iterable[Call], world_size: int) -> Finding | None:
    """The finding about a run that is over, in which a member made fewer of a group's collectives.

    Nobody was blocked: what was begun was never waited for, or the backend did without.
    """
    counts: dict[str, dict[int, list[Call]]] = {}
    for call in calls:
        if call.nth is not None:
            made = counts.setdefault(call.group, {rank: [] for rank in call.members})
            made.setdefault(call.rank, []).append(call)
    for made in counts.values():
        if len({len(each) for each in made.values()}) > 1:
            return _fewer(made, world_size)
    return None


def _fewer(made: dict[int, list[Call]], world_size: int) -> Finding:
    camps: dict[int, list[int]] = defaultdict(list)
    for rank, each in made.items():
        camps[len(each)].append(rank)
    most = max(camps)
    last = made[camps[most][0]][min(camps)]  # the first one that some did not make
    said = [f"{ranks_in_words(ranks)} made {count}" for count, ranks in sorted(camps.items())]
    group = last.in_group(world_size)
    return Finding(
        "mismatch",
        minority(camps.values()),
        f"the ranks did not make equally many collectives{group}: {listed(said)}.\n"
        f"  only {ranks_in_words(camps[most])}: {described(last)}, {last.place}",
        patterns.usually_fewer(last, camps[most]),
        {"difference": "count", "group": last.group, "nth": last.nth},
    )


def never_received(unmatched: Sequence[Call]) -> Finding:
    """The finding about messages of a run that is over that found no other side."""
    call = min(unmatched, key=lambda each: (each.time, each.rank))
    other = f"rank {call.peer}" if call.peer is not None else "any rank"
    if call.op == "send":
        said = f"rank {call.rank} sent {amount(call)} to {other} that {other} never received"
    else:
        said = f"rank {call.rank} began to receive {amount(call)} from {other}, which sent nothing"
    ranks = {call.rank} if call.peer is None else {call.rank, call.peer}
    return Finding(
        "mismatch",
        tuple(sorted(ranks)),
        f"{said}: {call.via}, {call.place}.",
        "the other side of the message was left out, or it is another rank's, or has another tag.",
        {"difference": "message", "group": call.group, "nth": None},
    )
