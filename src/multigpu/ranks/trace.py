"""The trace of a run: every call of torch.distributed that every rank made.

results = run_ranks(train, 4)
results.trace.collectives(rank=2)     # what rank 2 took part in
results.trace.sent_bytes(0)           # what rank 0 had to give away
results.trace.timeline()              # a picture; print(….text()) in a terminal
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from multigpu.ranks.calls import Call, Calls, Span, Transfer

if TYPE_CHECKING:
    from multigpu.pictures import Picture, Table


class Trace:
    """Every call of every rank, in the order in which they were made.

    Of a rank that makes more than about 50,000 calls, the oldest are not in it.
    """

    def __init__(
        self, calls: Iterable[Call], spans: Iterable[Span] = (), *, world_size: int
    ) -> None:
        self.world_size = world_size
        self.calls = tuple(sorted(calls, key=lambda call: (call.time, call.rank, call.id)))
        self.spans = tuple(sorted(spans, key=lambda span: (span.start, span.rank)))

    @classmethod
    def from_frames(cls, frames_by_rank: Sequence[Iterable[Mapping[str, Any]]]) -> "Trace":
        """The trace that the frames of rank 0, rank 1, ... add up to."""
        calls, spans = Calls(), []
        for rank, frames in enumerate(frames_by_rank):
            for frame in frames:
                calls.hear(rank, frame)
                if frame["phase"] == "span":
                    spans.append(Span(rank, frame["label"], frame["start"], frame["end"]))
        return cls(calls.values(), spans, world_size=len(frames_by_rank))

    def of(self, rank: int) -> tuple[Call, ...]:
        """The calls of one rank, in its own order."""
        return tuple(call for call in self.calls if call.rank == rank)

    def collectives(self, rank: int | None = None) -> tuple[Call, ...]:
        """The collectives (barriers among them) of one rank, or of all."""
        return tuple(
            call for call in self.calls if call.is_collective and rank in (None, call.rank)
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
        """Who had to give bytes to whom, as far as the calls themselves say it.

        A send is a transfer to its receiver. A broadcast or scatter is one from its root to each
        other member, a gather or reduce one from each other member to its root (a backend may pass
        them on through third ranks). An all_reduce, all_gather, reduce_scatter or all_to_all has
        no sender: how it travels is the backend's matter, so it is none.
        """
        return tuple(transfer for call in self.calls if (transfer := Transfer.of(call)))

    def sent_bytes(self, rank: int) -> int:
        """Bytes that `rank` had to give to others: the sum of its `transfers`."""
        name = f"rank {rank}"
        return sum(transfer.bytes for transfer in self.transfers() if transfer.source == name)

    def received_bytes(self, rank: int) -> int:
        """Bytes that `rank` had to get from others: the sum of `transfers` to it."""
        name = f"rank {rank}"
        return sum(transfer.bytes for transfer in self.transfers() if transfer.target == name)

    # The pictures are imported late: a check needs a trace, and none of them.

    def timeline(self, *, title: str = "Who works and who waits") -> "Picture":
        """A picture of time: a lane per rank, work solid, communication striped, waiting thin."""
        from multigpu.ranks.figures import timeline_of

        return timeline_of(self.calls, self.spans, self.world_size, title=title)

    def traffic(self, *, title: str = "Bytes between ranks") -> "Picture":
        """A picture of who gave how many bytes to whom, by kind of call."""
        from multigpu.ranks.figures import traffic_of

        return traffic_of(self.calls, self.world_size, title=title)

    def table(self, rank: int | None = None, *, title: str = "Calls in order") -> "Table":
        """Every call of one rank, or of all, as a table."""
        from multigpu.ranks.figures import table_of

        return table_of(self.calls, rank=rank, title=title)

    def __len__(self) -> int:
        return len(self.calls)

    def __repr__(self) -> str:
        return f"Trace({len(self.calls)} calls of {self.world_size} ranks)"
