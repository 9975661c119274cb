"""One call of torch.distributed, and which calls of different ranks belong together.

A rank reports each call before it makes it (a frame, plain data), when it begins to wait for an
async one, and when the wait is over. A `Call` collects these frames. Times are those of
`time.monotonic()`, which all ranks of one machine share.

The n-th collective that a rank makes in a group matches the n-th of every other member: a
`CollectiveMatch`. Messages to one rank with one tag in one group are in one `P2PQueue`; those from
one sender arrive in the order in which they were sent.
"""

from collections import defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from multigpu.ranks.errors import place, ranks_in_words

MESSAGE_OPS = ("send", "recv")
ROOTED = ("broadcast", "scatter", "gather", "reduce")  # one rank gives to or takes from the others
REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")
GROUPED = "batch_isend_irecv"  # sends and receives that NCCL runs at the same time
WORLD = "0"  # torch's name for the group that all ranks begin with
# Frames about a call that has begun.
FOLLOW_UP_PHASES = ("wait", "completed", "used", "done", "failed")


@dataclass(kw_only=True, eq=False)
class Call:
    """One call of a rank to torch.distributed, with its times.

    `op` is the collective's plain name (`all_reduce`, `send`, ...), `via` the function that was
    called (`isend`, `all_gather_object`, `DistributedDataParallel`, ...). `bytes` is this rank's
    input; for broadcast, scatter and recv it is the buffer that is filled. `nth` counts this rank's
    collectives in this group from 0, and is None for messages.
    """

    rank: int
    id: int  # the rank's own number for it
    op: str
    via: str
    group: str
    members: tuple[int, ...]  # global ranks
    nth: int | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    dtype: str | None = None
    numel: int = 0
    bytes: int = 0
    reduce: str | None = None
    root: int | None = None  # global rank
    peer: int | None = None  # receiver of a send, source of a recv; None: no message, or any source
    tag: int = 0
    is_async: bool = False
    wanted: tuple[int, ...] = ()  # the members that a new group should have
    thread: int  # native id
    file: str
    line: int
    function: str
    time: float  # said just before the call
    waited: float | None = None  # the (first) wait began
    end: float | None = None  # a wait returned, or the call failed
    changed: bool = False  # the caller's buffer was written between start and wait
    used: str = ""  # where an operator on a virtual GPU took the result before the wait
    completed: float | None = None  # an async collective was over, waited for or not
    failed: str | None = None  # the error's text, if the call or its wait raised
    nth_alike: int = 0  # counts this rank's calls of this operation in this group, from 1

    @classmethod
    def of(cls, rank: int, frame: Mapping[str, Any]) -> "Call":
        """The call that a `call` frame of `rank` announces."""
        said = {name: frame[name] for name in NAMES_OF_FIELDS if name in frame}
        for name in ("members", "wanted"):
            said[name] = tuple(frame.get(name, ()))
        said["shapes"] = tuple(map(tuple, frame.get("shapes", ())))
        if not frame.get("is_async"):  # the rank waits for it at once
            said["waited"] = frame["time"]
        return cls(**{**said, "rank": rank})

    def hear(self, frame: Mapping[str, Any]) -> None:
        """Take in a later frame about this call."""
        match frame["phase"]:
            case "wait" if self.waited is None:
                self.waited = frame["time"]
            case "completed":
                self.completed = frame["time"]
            case "used":
                self.used = place(frame["file"], frame["line"], frame["function"])
            case "failed":
                self.end, self.failed = frame["time"], frame["text"]
            case "done":
                self.end, self.changed = frame["time"], frame.get("changed", False)
                if frame.get("source") is not None:  # where a receive asked for any source
                    self.peer = frame["source"]

    @property
    def is_message(self) -> bool:
        return self.op in MESSAGE_OPS

    @property
    def is_open(self) -> bool:
        """Whether it was begun and no wait for it has returned."""
        return self.end is None

    @property
    def is_over(self) -> bool:
        """Whether nothing more depends on it; a failed one may be the cause of a later error."""
        return self.failed is None and (self.end is not None or self.completed is not None)

    @property
    def sender(self) -> int | None:
        """The sender of a message; None if any rank may send it."""
        return self.rank if self.op == "send" else self.peer

    @property
    def place(self) -> str:
        """The line of the program that made it, as `train.py:41`."""
        return place(self.file, self.line, self.function)

    def in_group(self, world_size: int) -> str:
        """` of the group of ranks 0 and 2`; nothing for the group that all ranks begin with."""
        if len(self.members) < world_size:
            return f" of the group of {ranks_in_words(self.members)}"
        return "" if self.group == WORLD else f" of group {self.group!r}"


NAMES_OF_FIELDS = [each.name for each in fields(Call)]  # found once: there are thousands of calls


@dataclass(frozen=True)
class Span:
    """Work that a rank named with `multigpu.ranks.span`."""

    rank: int
    label: str
    start: float
    end: float


@dataclass(frozen=True)
class Transfer:
    """Bytes that one rank had to send to another, and the call that caused it."""

    source: str  # "rank 0"
    target: str
    bytes: int
    call: Call

    @classmethod
    def of(cls, call: Call) -> "Transfer | None":
        """The transfer of a message, or of one member's part in a collective with a root."""
        if call.op == "send" and call.peer is not None:
            return cls(f"rank {call.rank}", f"rank {call.peer}", call.bytes, call)
        if call.op not in ROOTED or call.root is None or call.rank == call.root:
            return None
        ends = f"rank {call.root}", f"rank {call.rank}"
        source, target = ends if call.op in ("broadcast", "scatter") else ends[::-1]
        return cls(source, target, call.bytes, call)


@dataclass
class CollectiveMatch:
    """The n-th collective of one group: which of the members have begun it, with which call."""

    group: str
    nth: int
    members: tuple[int, ...]
    calls: dict[int, Call] = field(default_factory=dict)  # by rank, in the order of their times

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(rank for rank in self.members if rank not in self.calls)

    def may_advance(self) -> bool:
        """Whether some members can finish before others have begun.

        With a root, those that have met the root may finish, because the backend decides how it
        passes the data on.
        """
        here = self.calls.values()
        return any(call.op in ROOTED and call.rank == call.root for call in here)


@dataclass
class P2PQueue:
    """Messages to one rank, with one tag, in one group: the n-th send of a sender goes to the n-th
    receive from it."""

    sends: dict[int, list[Call]] = field(default_factory=lambda: defaultdict(list))  # by sender
    receives: dict[int, list[Call]] = field(default_factory=lambda: defaultdict(list))
    from_anyone: list[Call] = field(default_factory=list)  # receives that take any sender's

    def add(self, call: Call) -> None:
        if call.op == "send":
            self.sends[call.rank].append(call)
        elif call.peer is not None:
            self.receives[call.peer].append(call)
        else:
            self.from_anyone.append(call)

    def pair(self, call: Call) -> tuple[Call, Call] | None:
        """The send and the receive that meet, if the other side of `call` has been made.

        None if receives from any rank make the pairs depend on the order of arrival.
        """
        if self.from_anyone or call.sender is None:
            return None
        sends, receives = self.sends[call.sender], self.receives[call.sender]
        number = (sends if call.op == "send" else receives).index(call)
        made = number < len(sends) and number < len(receives)
        return (sends[number], receives[number]) if made else None

    def may_complete(self, call: Call) -> bool:
        """Whether the other side of an open call has been made, or may have been."""
        if not self.from_anyone:
            return self.pair(call) is not None
        if call.op == "send":
            receives = (*self.receives[call.rank], *self.from_anyone)
            waiting = sum(each.is_open for each in receives)
            return self.sends[call.rank].index(call) < self.arrived(call.rank) + waiting
        senders = list(self.sends) if call.peer is None else [call.peer]
        return any(len(self.sends[each]) > self.arrived(each) for each in senders)

    def arrived(self, sender: int) -> int:
        """How many messages of `sender` have been received; the trace then names the sender."""
        receives = (*self.receives[sender], *self.from_anyone)
        return sum(not each.is_open and each.peer == sender for each in receives)

    def unmatched(self) -> list[Call]:
        """Sends and receives that found no other side."""
        found = [call for call in self.from_anyone if call.is_open]
        for sender in self.sends.keys() | self.receives.keys():
            sends, receives = self.sends[sender], self.receives[sender]
            arrived = self.arrived(sender) if self.from_anyone else len(receives)
            found += sends[arrived:] + receives[len(sends) :]
        return found

    def forget(self, sender: int) -> list[Call]:
        """Forget the oldest messages of a sender that are over on both sides; return them."""
        forgotten: list[Call] = []
        sends, receives = self.sends[sender], self.receives[sender]
        while sends and receives and not self.from_anyone:
            if not (sends[0].is_over and receives[0].is_over):
                break
            forgotten += sends.pop(0), receives.pop(0)
        return forgotten


class Matching:
    """All matches and queues of a run, but for those in which all is over."""

    def __init__(self) -> None:
        self.matches: dict[tuple[str, int], CollectiveMatch] = {}
        self.queues: dict[tuple[str, int, int], P2PQueue] = defaultdict(P2PQueue)

    def add(self, call: Call) -> None:
        if call.nth is not None:
            self.match(call).calls[call.rank] = call
        else:
            self.queue(call).add(call)

    def match(self, call: Call) -> CollectiveMatch:
        assert call.nth is not None
        name = call.group, call.nth
        if name not in self.matches:
            self.matches[name] = CollectiveMatch(*name, call.members)
        return self.matches[name]

    def queue(self, call: Call) -> P2PQueue:
        receiver = call.peer if call.op == "send" else call.rank
        assert receiver is not None
        return self.queues[call.group, receiver, call.tag]

    def may_complete(self, call: Call) -> bool:
        """Whether a call that is still open can end without any other call being made."""
        if call.completed is not None:
            return True
        if call.nth is not None:
            return not self.match(call).missing
        return self.queue(call).may_complete(call)

    def waits_for(self, call: Call, over: Container[int]) -> tuple[int, ...]:
        """The ranks that would have to make a call for this one to end.

        A receive from any rank waits for those that are not `over`, as long as there are some.
        """
        if call.nth is not None:
            return self.match(call).missing
        if call.peer is not None:
            return (call.peer,)
        others = tuple(rank for rank in call.members if rank != call.rank)
        return tuple(rank for rank in others if rank not in over) or others

    def forget(self, call: Call) -> list[Call]:
        """Forget a call that is over with those that it matches, once these are, too; return them.

        A program may run for days.
        """
        if call.is_message:
            return [] if call.sender is None else self.queue(call).forget(call.sender)
        assert call.nth is not None
        match = self.matches.get((call.group, call.nth))
        if match is None or match.missing or not all(c.is_over for c in match.calls.values()):
            return []
        del self.matches[match.group, match.nth]
        return list(match.calls.values())
