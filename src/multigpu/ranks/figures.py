"""Pictures and tables of a trace."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from multigpu.pictures import Picture, Step, Table, human_bytes, steps, timeline
from multigpu.pictures.timeline import TimelineSpan
from multigpu.pictures.units import human_seconds
from multigpu.ranks.state import Matching
from multigpu.ranks.trace import ROOTED, Call, Trace


class Met(NamedTuple):
    """When all that a call needs had come, whose call was the last to come, and a name for it."""

    when: float
    last: int
    of: str


def timeline_of(trace: Trace, *, title: str) -> Picture:
    """Who computes, communicates and waits for others, and when.

    Solid are the spans that the ranks named. A call is a thin line until all that it needs have
    come, and striped from there to its end.
    """
    lanes = [f"rank {rank}" for rank in range(trace.world_size)]
    return timeline([*_work(trace), *_talk(trace)], lanes, title=title)


def _work(trace: Trace) -> Iterator[TimelineSpan]:
    for span in trace.spans:
        yield TimelineSpan(f"rank {span.rank}", span.label, span.start, span.end, "compute")


def _talk(trace: Trace) -> Iterator[TimelineSpan]:
    met, last = matches_of(trace), _last_moment(trace)
    for call in trace.calls:
        lane = f"rank {call.rank}"
        end = min(filter(None, (call.completed, call.end)), default=last)
        match = met.get((call.rank, call.id))
        start = max(match.when if match else end, call.time)
        of, details = match.of if match else "", _details(call)
        if min(start, end) > call.time:
            missed = f"for rank {match.last}" if match else "what it needs is not shown here"
            said, until = f"{missed}; {details}", min(start, end)
            yield TimelineSpan(lane, f"{call.op} waits", call.time, until, "waiting", said, of)
        if end > start:
            yield TimelineSpan(lane, call.op, start, end, "communication", details, of)


def _details(call: Call) -> str:
    """The bytes, the other ranks and the line of a call."""
    return ", ".join(filter(None, (_data(call), _partners(call), call.place)))


def _last_moment(trace: Trace) -> float:
    """Where a call that never ended is cut off: a little after all that is known."""
    known = [span.end for span in trace.spans]
    known += [moment for call in trace.calls for moment in (call.time, call.end or call.time)]
    begin = min([*(span.start for span in trace.spans), *known], default=0.0)
    last = max(known, default=0.0)
    return last + 0.08 * (last - begin)


def matches_of(trace: Trace) -> dict[tuple[int, int], Met]:
    """Of each call that met what it needs, by (rank, the rank's number of the call)."""
    calls = {(call.rank, call.id): call for call in trace.calls}
    matching = Matching(calls)
    for call in trace.calls:
        matching.add(call)
    met: dict[tuple[int, int], Met] = {}
    for match in matching.matches.values():
        if not match.missing:
            of = f"collective {match.nth} of group {match.group}"
            met |= dict.fromkeys(match.keys.values(), _met(match.calls(calls), of))
    for key, call in calls.items():
        if call.is_message and (call.peer is None or not call.is_open):
            met[key] = Met(call.time, call.rank, "")  # met at the latest at its end
        if call.is_message and (pair := matching.queue(call).pair(call)):
            of = f"message {pair[0][1]} of rank {pair[0][0]}"
            met[key] = _met([calls[each] for each in pair], of)
    return met


def _met(calls: Sequence[Call], of: str) -> Met:
    last = max(calls, key=lambda call: call.time)
    return Met(last.time, last.rank, of)


def traffic_of(trace: Trace, *, title: str) -> Picture:
    """Who gave how many bytes to whom, by kind of call.

    Messages and calls with a root are arrows. In the other collectives nobody is the sender, so
    they show what each rank brings.
    """
    kinds: dict[str, list[Call]] = defaultdict(list)
    for call in trace.calls:
        kinds["messages" if call.is_message else call.op].append(call)
    ranks = [f"rank {rank}" for rank in range(trace.world_size)]
    movements = [_movement(name, calls, trace) for name, calls in kinds.items()]
    return steps(movements, ranks, title=title)


def _movement(name: str, calls: Sequence[Call], trace: Trace) -> Step:
    if name == "messages" or name in ROOTED:
        ids = {(call.rank, call.id) for call in calls}
        given = [t for t in trace.transfers() if (t.call.rank, t.call.id) in ids]
        return Step(name, given)
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


def table_of(trace: Trace, *, rank: int | None, title: str) -> Table:
    """One row per call, in the order of time, which counts from the first call."""
    chosen = [call for call in trace.calls if rank in (None, call.rank)]
    start = min((call.time for call in trace.calls), default=0.0)
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
