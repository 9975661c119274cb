"""Pictures and tables of a trace."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from multigpu.pictures import Picture, Step, Table, human_bytes, steps, timeline
from multigpu.pictures.timeline import TimelineSpan
from multigpu.pictures.units import human_seconds
from multigpu.ranks.calls import ROOTED, Call, Calls, Key, Matching, Span, Transfer


class Met(NamedTuple):
    """When all that a call needs had come, whose call was the last to come, and a name for it."""

    when: float
    last: int
    of: str


def timeline_of(
    calls: Sequence[Call], spans: Sequence[Span], world_size: int, *, title: str
) -> Picture:
    """Who computes, communicates and waits for others, and when.

    Solid are the spans that the ranks named. A call is a thin line until all that it needs have
    come, and striped from there to its end.
    """
    lanes = [f"rank {rank}" for rank in range(world_size)]
    work = [TimelineSpan(f"rank {s.rank}", s.label, s.start, s.end, "compute") for s in spans]
    return timeline([*work, *_talk(calls, _last_moment(calls, spans))], lanes, title=title)


def _talk(calls: Sequence[Call], last: float) -> Iterator[TimelineSpan]:
    met = _met_of(calls)
    for call in calls:
        lane = f"rank {call.rank}"
        end = min(filter(None, (call.completed, call.end)), default=last)
        match = met.get(call.key)
        start = max(match.when if match else end, call.time)
        of = match.of if match else ""
        details = ", ".join(filter(None, (_data(call), _partners(call), call.place)))
        if min(start, end) > call.time:
            missed = f"for rank {match.last}" if match else "what it needs is not shown here"
            said, until = f"{missed}; {details}", min(start, end)
            yield TimelineSpan(lane, f"{call.op} waits", call.time, until, "waiting", said, of)
        if end > start:
            yield TimelineSpan(lane, call.op, start, end, "communication", details, of)


def _last_moment(calls: Sequence[Call], spans: Sequence[Span]) -> float:
    """Where a call that never ended is cut off: a little after all that is known."""
    known = [span.end for span in spans]
    known += [moment for call in calls for moment in (call.time, call.end or call.time)]
    begin = min([*(span.start for span in spans), *known], default=0.0)
    last = max(known, default=0.0)
    return last + 0.08 * (last - begin)


def _met_of(made: Sequence[Call]) -> dict[Key, Met]:
    """Of each call that met what it needs: when that was."""
    calls = Calls({call.key: call for call in made})
    matching = Matching(calls)
    for call in made:
        matching.add(call)
    met: dict[Key, Met] = {}
    for match in matching.matches.values():
        if not match.missing:
            of = f"collective {match.nth} of group {match.group}"
            met |= dict.fromkeys(match.keys.values(), _met(match.calls(calls), of))
    for call in made:
        if call.is_message and (call.peer is None or not call.is_open):
            met[call.key] = Met(call.time, call.rank, "")  # met at the latest at its end
        if call.is_message and (pair := matching.queue(call).pair(call)):
            of = f"message {pair[0][1]} of rank {pair[0][0]}"
            met[call.key] = _met([calls[each] for each in pair], of)
    return met


def _met(calls: Sequence[Call], of: str) -> Met:
    last = max(calls, key=lambda call: call.time)
    return Met(last.time, last.rank, of)


def traffic_of(calls: Sequence[Call], world_size: int, *, title: str) -> Picture:
    """Who gave how many bytes to whom, by kind of call.

    Messages and calls with a root are arrows. In the other collectives nobody is the sender, so
    they show what each rank brings.
    """
    kinds: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        kinds["messages" if call.is_message else call.op].append(call)
    movements = [_movement(name, alike) for name, alike in kinds.items()]
    return steps(movements, [f"rank {rank}" for rank in range(world_size)], title=title)


def _movement(name: str, calls: Sequence[Call]) -> Step:
    if name == "messages" or name in ROOTED:
        return Step(name, [given for call in calls if (given := Transfer.of(call))])
    brought: dict[str, list[int]] = defaultdict(list)
    for call in calls:
        brought[f"rank {call.rank}"].append(call.bytes)
    note = "every rank takes part" if not any(call.bytes for call in calls) else "every rank brings"
    return Step(name, work={rank: _amount(sizes) for rank, sizes in brought.items()}, note=note)


def _amount(sizes: Sequence[int]) -> str:
    times = f"{len(sizes)} × " if len(sizes) > 1 else ""
    if not any(sizes):
        return "once" if len(sizes) == 1 else f"{len(sizes)} times"
    if len(set(sizes)) == 1:
        return f"{times}{human_bytes(sizes[0])}"
    return human_bytes(sum(sizes))


def table_of(calls: Sequence[Call], *, rank: int | None, title: str) -> Table:
    """One row per call, in the order of time, which counts from the first call."""
    chosen = [call for call in calls if rank in (None, call.rank)]
    start = min((call.time for call in calls), default=0.0)
    return Table(
        title,
        ("at", "rank", "call", "data", "with", "line", "took"),
        tuple(_row(call, start) for call in chosen),
        numbers=frozenset({"at", "rank", "took"}),
    )


def _row(call: Call, start: float) -> tuple[str, ...]:
    name = call.op if call.via in ("", call.op) else f"{call.op} ({call.via})"
    took = human_seconds(call.end - call.time) if call.end is not None else "never ended"
    return (
        human_seconds(call.time - start),
        str(call.rank),
        name,
        _data(call),
        _partners(call),
        call.place,
        took,
    )


def _data(call: Call) -> str:
    data = f"{human_bytes(call.bytes)} {call.dtype}" if call.bytes else ""
    return f"{data} {call.reduce}" if call.reduce else data


def _partners(call: Call) -> str:
    if call.op == "send":
        return f"to rank {call.peer}"
    if call.op == "recv":
        return "from any rank" if call.peer is None else f"from rank {call.peer}"
    members = f"ranks {', '.join(map(str, call.members))}"
    return f"root {call.root}, {members}" if call.root is not None else members
