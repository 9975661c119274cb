"""The trace of a run: every call of torch.distributed that every rank made.

    results = run_ranks(train, 4)
    results.trace.collectives(rank=2)     # what rank 2 took part in
    results.trace.sent_bytes(0)           # what rank 0 had to give away
    results.trace.timeline()              # a picture; print(….text()) in a terminal

A rank says each call before it makes it (a frame, plain data), then when it begins to wait for it,
and when the wait is over. `Call` is what these frames add up to. Times are those of
`time.monotonic()`, which all ranks of one machine share.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from multigpu.ranks.errors import place, ranks_in_words

if TYPE_CHECKING:
    from multigpu.pictures import Picture, Table


MESSAGES = ("send", "recv")
ROOTED = ("broadcast", "scatter", "gather", "reduce")  # one rank gives to or takes from the others
WORLD = "0"  # torch's name for the group that all ranks begin with
REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")


@dataclass(frozen=True)
class Call:
    """What one rank asked of torch.distributed, and when.

    `op` is the collective's plain name (`all_reduce`, `send`, ...), `via` the function that was
    called (`isend`, `all_gather_object`, `DistributedDataParallel`, ...). `bytes` is this rank's
    input; for broadcast, scatter and recv the buffer that is filled. `nth` counts this rank's
    collectives in this group from 0, and is None for messages.
    """

    rank: int
    id: int  # the rank's own number for it
    op: str
    via: str
    group: str
    members: tuple[int, ...]  # global ranks
    nth: int | None
    shapes: tuple[tuple[int, ...], ...]
    dtype: str | None
    numel: int
    bytes: int
    reduce: str | None
    root: int | None  # global rank
    peer: int | None  # receiver of a send, source of a recv; None: no message, or any source
    tag: int
    is_async: bool
    thread: int  # native id
    file: str
    line: int
    function: str
    time: float  # said just before the call
    wanted: tuple[int, ...] = ()  # the members that a new group shall have
    waited: float | None = None  # the (first) wait began
    end: float | None = None  # a wait returned, or the call failed
    changed: bool = False  # the caller's buffer was written between start and wait
    completed: float | None = None  # an async collective was over, waited for or not
    failed: str | None = None  # the error's text, if the call or its wait raised

    @classmethod
    def of(cls, rank: int, frame: Mapping[str, Any]) -> "Call":
        """The call that a `call` frame of `rank` announces."""
        known = {name: frame[name] for name in _SAID if name in frame}
        known["members"] = tuple(frame["members"])
        known["wanted"] = tuple(frame.get("wanted", ()))
        known["shapes"] = tuple(tuple(shape) for shape in frame.get("shapes", ()))
        return cls(rank=rank, **{**_UNSAID, **known})

    def heard(self, frame: Mapping[str, Any]) -> "Call":
        """This call after a later frame about it: `wait`, `completed`, `done` or `failed`."""
        if frame["phase"] == "wait":
            return self if self.waited is not None else replace(self, waited=frame["time"])
        if frame["phase"] == "completed":
            return replace(self, completed=frame["time"])
        if frame["phase"] == "failed":
            return replace(self, end=frame["time"], failed=frame["text"])
        source = frame.get("source")  # who it came from, where a receive asked for any source
        return replace(
            self,
            end=frame["time"],
            changed=frame.get("changed", False),
            peer=self.peer if source is None else source,
        )

    @property
    def is_message(self) -> bool:
        """Whether it is a send or a receive."""
        return self.op in MESSAGES

    @property
    def is_collective(self) -> bool:
        """Whether every member of the group must make it."""
        return not self.is_message

    @property
    def is_open(self) -> bool:
        """Whether it was begun and no wait for it has returned."""
        return self.end is None

    @property
    def place(self) -> str:
        """Where the call stands, as `train.py:41`."""
        return place(self.file, self.line, self.function)

    def in_group(self, world_size: int) -> str:
        """` of the group of ranks 0 and 2`; nothing for the group that all ranks begin with."""
        if len(self.members) < world_size:
            return f" of the group of {ranks_in_words(self.members)}"
        return "" if self.group == WORLD else f" of group {self.group!r}"


_SAID = [field.name for field in fields(Call)][1:22]  # id ... wanted
_UNSAID: dict[str, Any] = {
    "nth": None,
    "dtype": None,
    "numel": 0,
    "bytes": 0,
    "reduce": None,
    "root": None,
    "peer": None,
    "tag": 0,
    "is_async": False,
    "shapes": (),
}


@dataclass(frozen=True)
class Span:
    """Work that a rank named with `multigpu.ranks.span`."""

    rank: int
    label: str
    start: float
    end: float


ABOUT_CALLS = ("wait", "completed", "done", "failed")
FRAMES_OF_CALLS = ("call", *ABOUT_CALLS, "span")


@dataclass(frozen=True)
class Transfer:
    """Bytes that one rank had to give to another, and the call that says so."""

    source: str  # "rank 0"
    target: str
    bytes: int
    call: Call


class TraceBuilder:
    """Puts a trace together from the frames of the ranks, as they come."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.calls: dict[tuple[int, int], Call] = {}  # by rank and the rank's own number
        self.spans: list[Span] = []

    def hear(self, rank: int, frame: Mapping[str, Any]) -> Call | None:
        """Take in one frame; the call that it is about, as it is known now, if it is about one."""
        phase = frame.get("phase")
        if phase == "span":
            self.spans.append(Span(rank, frame["label"], frame["start"], frame["end"]))
        if phase == "call":
            call = Call.of(rank, frame)
        elif phase in ABOUT_CALLS and (rank, frame["id"]) in self.calls:
            call = self.calls[rank, frame["id"]].heard(frame)
        else:
            return None
        self.calls[rank, call.id] = call
        return call

    def trace(self) -> "Trace":
        """The trace so far."""
        return Trace(self.calls.values(), self.spans, world_size=self.world_size)


class Trace:
    """Every call of every rank, in the order in which they were made."""

    def __init__(
        self, calls: Iterable[Call], spans: Iterable[Span] = (), *, world_size: int
    ) -> None:
        self.world_size = world_size
        self.calls = tuple(sorted(calls, key=lambda call: (call.time, call.rank, call.id)))
        self.spans = tuple(sorted(spans, key=lambda span: (span.start, span.rank)))

    @classmethod
    def from_frames(cls, frames_by_rank: Sequence[Iterable[Mapping[str, Any]]]) -> "Trace":
        """The trace that the frames of rank 0, rank 1, ... add up to."""
        builder = TraceBuilder(len(frames_by_rank))
        for rank, frames in enumerate(frames_by_rank):
            for frame in frames:
                builder.hear(rank, frame)
        return builder.trace()

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
        return tuple(transfer for call in self.calls if (transfer := _transfer(call)))

    def sent_bytes(self, rank: int) -> int:
        """Bytes that `rank` had to give to others: the sum of its `transfers`."""
        name = f"rank {rank}"
        return sum(transfer.bytes for transfer in self.transfers() if transfer.source == name)

    def received_bytes(self, rank: int) -> int:
        """Bytes that `rank` had to get from others: the sum of `transfers` to it."""
        name = f"rank {rank}"
        return sum(transfer.bytes for transfer in self.transfers() if transfer.target == name)

    def timeline(self, *, title: str = "Who works and who waits") -> "Picture":
        """A picture of time: a lane per rank, work solid, communication striped, waiting thin."""
        from multigpu.ranks.figures import timeline_of

        return timeline_of(self, title=title)

    def traffic(self, *, title: str = "Bytes between ranks") -> "Picture":
        """A picture of who gave how many bytes to whom, by kind of call."""
        from multigpu.ranks.figures import traffic_of

        return traffic_of(self, title=title)

    def table(self, rank: int | None = None, *, title: str = "Calls in order") -> "Table":
        """Every call of one rank, or of all, as a table."""
        from multigpu.ranks.figures import table_of

        return table_of(self, rank=rank, title=title)

    def __len__(self) -> int:
        return len(self.calls)

    def __repr__(self) -> str:
        return f"Trace({len(self.calls)} calls of {self.world_size} ranks)"


def _transfer(call: Call) -> Transfer | None:
    if call.op == "send" and call.peer is not None:
        return Transfer(f"rank {call.rank}", f"rank {call.peer}", call.bytes, call)
    if call.op not in ROOTED or call.root is None or call.rank == call.root:
        return None
    ends = f"rank {call.root}", f"rank {call.rank}"
    source, target = ends if call.op in ("broadcast", "scatter") else ends[::-1]
    return Transfer(source, target, call.bytes, call)
