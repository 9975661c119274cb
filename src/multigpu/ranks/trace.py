"""The trace of a run: every call of torch.distributed that every rank made.

results = run_ranks(train, 4)
results.trace.collectives(rank=2)     # what rank 2 took part in
results.trace.sent_bytes(0)           # what rank 0 had to give away
results.trace.timeline()              # a picture; print(….text()) in a terminal
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from multigpu.ranks.calls import ROOTED, Call, Matching, Span, Transfer

if TYPE_CHECKING:
    from multigpu.pictures import Picture, Table


class Trace:
    """Every call of every rank, in the order in which they were made.

    If a rank makes more than 50,000 calls, the oldest are left out.
    """

    def __init__(
        self, calls: Iterable[Call], spans: Iterable[Span] = (), *, world_size: int
    ) -> None:
        self.world_size = world_size
        self.calls = tuple(sorted(calls, key=lambda call: (call.time, call.rank, call.id)))
        self.spans = tuple(sorted(spans, key=lambda span: (span.start, span.rank)))

    def of(self, rank: int) -> tuple[Call, ...]:
        """The calls of one rank, in its own order."""
        return tuple(call for call in self.calls if call.rank == rank)

    def collectives(self, rank: int | None = None) -> tuple[Call, ...]:
        """The collectives (barriers among them) of one rank, or of all."""
        return tuple(
            call for call in self.calls if not call.is_message and rank in (None, call.rank)
        )

    def messages(self, rank: int | None = None) -> tuple[Call, ...]:
        """The sends and receives of one rank, or of all."""
        return tuple(call for call in self.calls if call.is_message and rank in (None, call.rank))

    def since(self, moment: float, *, until: float = float("inf")) -> "Trace":
        """The part that began at `moment` or later and before `until`: one step of several."""
        return Trace(
            (call for call in self.calls if moment <= call.time < until),
            (span for span in self.spans if moment <= span.start < until),
            world_size=self.world_size,
        )

    def transfers(self) -> tuple[Transfer, ...]:
        """Which rank had to send bytes to which, as far as the calls themselves show it.

        A send is a transfer to its receiver. A broadcast or scatter is one from its root to each
        other member, a gather or reduce one from each other member to its root (a backend may pass
        them on through third ranks). An all_reduce, all_gather, reduce_scatter or all_to_all has no
        sender, because the backend decides how it travels, so it is not listed.
        """
        return tuple(transfer for call in self.calls if (transfer := Transfer.of(call)))

    def sent_bytes(self, rank: int) -> int:
        """Bytes that `rank` had to send to others: the sum of its `transfers`."""
        name = f"rank {rank}"
        return sum(transfer.bytes for transfer in self.transfers() if transfer.source == name)

    def received_bytes(self, rank: int) -> int:
        """Bytes that `rank` had to receive from others: the sum of `transfers` to it."""
        name = f"rank {rank}"
        return sum(transfer.bytes for transfer in self.transfers() if transfer.target == name)

    # The pictures are imported late: a check needs a trace, and none of them.

    def timeline(self, *, title: str = "Who works and who waits") -> "Picture":
        """A timeline: a lane per rank, work solid, communication striped, waiting thin.

        Work is shown for the spans that the ranks named. A call waits until all its ranks have
        called, and communicates from there to its end.
        """
        from multigpu.pictures.timeline import TimelineSpan, timeline

        work = [
            TimelineSpan(f"rank {s.rank}", s.label, s.start, s.end, "compute") for s in self.spans
        ]
        # A call that never ended is cut off a little after all that is known.
        starts = [*(span.start for span in self.spans), *(call.time for call in self.calls)]
        ends = [*(span.end for span in self.spans), *(call.end or call.time for call in self.calls)]
        first, last = min(starts, default=0.0), max(ends, default=0.0)
        last += 0.08 * (last - first)
        met = self._met()
        talk = []
        for call in self.calls:
            lane = f"rank {call.rank}"
            end = min(filter(None, (call.completed, call.end)), default=last)
            when, latest, of = met.get(call, (end, None, ""))
            start = max(when, call.time)
            details = ", ".join(filter(None, (_data(call), _partners(call), call.place)))
            if min(start, end) > call.time:
                awaited = (
                    "for a call that is not shown here" if latest is None else f"for rank {latest}"
                )
                said, until = f"{awaited}; {details}", min(start, end)
                talk.append(
                    TimelineSpan(lane, f"{call.op} waits", call.time, until, "waiting", said, of)
                )
            if end > start:
                talk.append(TimelineSpan(lane, call.op, start, end, "communication", details, of))
        return timeline([*work, *talk], self._lanes(), title=title)

    def traffic(self, *, title: str = "Bytes between ranks") -> "Picture":
        """A picture of the bytes between ranks, by kind of call.

        Messages and calls with a root are arrows. The other collectives have no sender, so they
        show each rank's input.
        """
        from multigpu.pictures import Step, steps

        kinds: dict[str, list[Call]] = defaultdict(list)
        for call in self.calls:
            kinds["messages" if call.is_message else call.op].append(call)
        drawn = []
        for name, calls in kinds.items():
            if name == "messages" or name in ROOTED:
                drawn.append(Step(name, [given for call in calls if (given := Transfer.of(call))]))
                continue
            sizes: dict[str, list[int]] = defaultdict(list)
            for call in calls:
                sizes[f"rank {call.rank}"].append(call.bytes)
            brings = any(call.bytes for call in calls)
            note = "every rank brings" if brings else "every rank takes part"
            work = {rank: _amount(brought) for rank, brought in sizes.items()}
            drawn.append(Step(name, work=work, note=note))
        return steps(drawn, self._lanes(), title=title)

    def table(self, rank: int | None = None) -> "Table":
        """Every call of one rank, or of all, as a table; times count from the first call."""
        from multigpu.pictures import Table
        from multigpu.pictures.units import human_seconds

        rows = [
            (
                human_seconds(call.time - self.calls[0].time),
                str(call.rank),
                call.op if call.via == call.op else f"{call.op} ({call.via})",
                _data(call),
                _partners(call),
                call.place,
                "never ended" if call.end is None else human_seconds(call.end - call.time),
            )
            for call in self.calls
            if rank in (None, call.rank)
        ]
        columns = ("at", "rank", "call", "data", "with", "line", "took")
        numbers = frozenset({"at", "rank", "took"})
        return Table("Calls in order", columns, tuple(rows), numbers)

    def _lanes(self) -> list[str]:
        return [f"rank {rank}" for rank in range(self.world_size)]

    def _met(self) -> dict[Call, tuple[float, int, str]]:
        """For completed matches: the time of the last call, its rank, and a name."""
        matching = Matching()
        for call in self.calls:
            matching.add(call)
        together = [
            (list(match.calls.values()), f"collective {match.nth} of group {match.group}")
            for match in matching.matches.values()
            if not match.missing
        ]
        met: dict[Call, tuple[float, int, str]] = {}
        for call in self.calls:
            if call.is_message and (call.peer is None or not call.is_open):
                met[call] = call.time, call.rank, ""  # met at the latest at its end
            if call.op == "send" and (pair := matching.queue(call).pair(call)):
                together.append((list(pair), f"message {call.id} of rank {call.rank}"))
        for alike, name in together:
            last = max(alike, key=lambda call: call.time)
            met |= dict.fromkeys(alike, (last.time, last.rank, name))
        return met

    def __len__(self) -> int:
        return len(self.calls)

    def __repr__(self) -> str:
        return f"Trace({len(self.calls)} calls of {self.world_size} ranks)"


def _data(call: Call) -> str:
    from multigpu.pictures import human_bytes

    data = f"{human_bytes(call.bytes)} {call.dtype}" if call.bytes else ""
    return f"{data} {call.reduce}" if call.reduce else data


def _partners(call: Call) -> str:
    if call.op == "send":
        return f"to rank {call.peer}"
    if call.op == "recv":
        return "from any rank" if call.peer is None else f"from rank {call.peer}"
    members = f"ranks {', '.join(map(str, call.members))}"
    return f"root {call.root}, {members}" if call.root is not None else members


def _amount(sizes: Sequence[int]) -> str:
    from multigpu.pictures import human_bytes

    times = f"{len(sizes)} × " if len(sizes) > 1 else ""
    if not any(sizes):
        return "once" if len(sizes) == 1 else f"{len(sizes)} times"
    if len(set(sizes)) == 1:
        return f"{times}{human_bytes(sizes[0])}"
    return human_bytes(sum(sizes))
