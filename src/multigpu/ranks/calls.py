"""One call of torch.distributed, and which calls of different ranks belong together.

A rank reports each call before it makes it (a frame, plain data), then when it begins to wait for
it, and when the wait is over. A `Call` collects these frames. Times are those of
`time.monotonic()`, which all ranks of one machine share.

The n-th collective that a rank makes in a group matches the n-th of every other member: a
`CollectiveMatch`. Messages to one rank with one tag in one group are in one `P2PQueue`; those from
one sender are a `Channel` and arrive in the order in which they were sent.
"""

from collections import Counter, defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from typing import Any

from multigpu.ranks.errors import place, ranks_in_words

MESSAGES = ("send", "recv")
ROOTED = ("broadcast", "scatter", "gather", "reduce")  # one rank gives to or takes from the others
REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")
GROUPED = "batch_isend_irecv"  # sends and receives that NCCL runs at the same time
WORLD = "0"  # torch's name for the group that all ranks begin with
LATER = ("wait", "completed", "used", "done", "failed")  # frames about a call that has begun

Key = tuple[int, int]  # a call: its rank, and the rank's own number for it


@dataclass(frozen=True, kw_only=True)
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

    @classmethod
    def of(cls, rank: int, frame: Mapping[str, Any]) -> "Call":
        """The call that a `call` frame of `rank` announces."""
        said = {each.name: frame[each.name] for each in fields(cls) if each.name in frame}
        for name in ("members", "wanted"):
            said[name] = tuple(frame.get(name, ()))
        said["shapes"] = tuple(map(tuple, frame.get("shapes", ())))
        return cls(**{**said, "rank": rank})

    def heard(self, frame: Mapping[str, Any]) -> "Call":
        """This call after a later frame about it."""
        if frame["phase"] == "wait":
            return self if self.waited is not None else replace(self, waited=frame["time"])
        if frame["phase"] == "completed":
            return replace(self, completed=frame["time"])
        if frame["phase"] == "used":
            return replace(self, used=place(frame["file"], frame["line"], frame["function"]))
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
    def key(self) -> Key:
        """Its name in a run."""
        return self.rank, self.id

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


class Calls(dict[Key, Call]):
    """The calls of a run, as far as they are known."""

    def hear(self, rank: int, frame: Mapping[str, Any]) -> Call | None:
        """Take in one frame, and return the call that it is about, if any."""
        if frame["phase"] == "call":
            call = Call.of(rank, frame)
        elif frame["phase"] in LATER and (rank, frame["id"]) in self:
            call = self[rank, frame["id"]].heard(frame)
        else:
            return None
        self[call.key] = call
        return call


@dataclass
class CollectiveMatch:
    """The n-th collective of one group: which of the members have begun it, with which call."""

    group: str
    nth: int
    members: tuple[int, ...]
    keys: dict[int, Key] = field(default_factory=dict)  # by rank

    @property
    def missing(self) -> tuple[int, ...]:
        """The members that have not begun it."""
        return tuple(rank for rank in self.members if rank not in self.keys)

    def calls(self, calls: Calls) -> list[Call]:
        """The calls that have been made, by rank."""
        return [calls[self.keys[rank]] for rank in sorted(self.keys)]

    def may_advance(self, calls: Calls) -> bool:
        """Whether some members can finish before others have begun.

        With a root, those that have met the root may finish, because the backend decides how it
        passes the data on.
        """
        here = self.calls(calls)
        return here[0].op in ROOTED and any(call.rank == call.root for call in here)


@dataclass
class Channel:
    """The messages from one sender in a queue: the n-th send goes to the n-th receive.

    The number of a forgotten pair is kept.
    """

    sends: dict[int, Key] = field(default_factory=dict)  # by their number
    receives: dict[int, Key] = field(default_factory=dict)
    made: Counter[str] = field(default_factory=Counter)  # sends and receives, forgotten ones too

    @property
    def forgotten(self) -> int:
        """The number of forgotten pairs."""
        return self.made["send"] - len(self.sends)


@dataclass
class P2PQueue:
    """Messages to one rank, with one tag, in one group."""

    channels: dict[int, Channel] = field(default_factory=lambda: defaultdict(Channel))  # by sender
    from_anyone: list[Key] = field(default_factory=list)  # receives that take any sender's
    numbers: dict[Key, int] = field(default_factory=dict)  # in the channel, on its side

    def add(self, call: Call) -> None:
        """Put in a call that has just begun."""
        if call.sender is None:
            self.from_anyone.append(call.key)
            return
        channel = self.channels[call.sender]
        number = self.numbers[call.key] = channel.made[call.op]
        (channel.sends if call.op == "send" else channel.receives)[number] = call.key
        channel.made[call.op] += 1

    def pair(self, call: Call) -> tuple[Key, Key] | None:
        """The send and the receive that meet, if the other side of `call` has been made.

        None if receives from any rank make the pairs depend on the order of arrival.
        """
        if self.from_anyone or call.sender is None:
            return None
        channel, number = self.channels[call.sender], self.numbers[call.key]
        if number not in channel.sends or number not in channel.receives:
            return None
        return channel.sends[number], channel.receives[number]

    def may_complete(self, call: Call, calls: Calls) -> bool:
        """Whether the other side of an open call has been made, or may have been."""
        if not self.from_anyone:
            return self.pair(call) is not None
        if call.op == "send":
            channel = self.channels[call.rank]
            receives = [*channel.receives.values(), *self.from_anyone]
            taken = channel.forgotten + self._arrived(call.rank, calls)
            taken += sum(calls[key].is_open for key in receives)
            return self.numbers[call.key] < taken
        senders = list(self.channels) if call.peer is None else [call.peer]
        return any(
            len(self.channels[sender].sends) > self._arrived(sender, calls) for sender in senders
        )

    def unmatched(self, calls: Calls) -> list[Key]:
        """Sends and receives that found no other side."""
        found = [key for key in self.from_anyone if calls[key].is_open]
        for sender, channel in self.channels.items():
            arrived = channel.made["recv"]
            if self.from_anyone:
                arrived = channel.forgotten + self._arrived(sender, calls)
            found += [key for number, key in channel.sends.items() if number >= arrived]
            found += [k for number, k in channel.receives.items() if number >= channel.made["send"]]
        return found

    def forget(self, calls: Calls) -> None:
        """Forget those of the first half of the pairs in which both sides are over."""
        if self.from_anyone:
            return
        for channel in self.channels.values():
            for number, send in islice(list(channel.sends.items()), (len(channel.sends) + 1) // 2):
                receive = channel.receives.get(number)
                if receive is None or not (_is_over(calls[send]) and _is_over(calls[receive])):
                    break
                del channel.sends[number], channel.receives[number]
                for key in (send, receive):
                    del self.numbers[key], calls[key]

    def _arrived(self, sender: int, calls: Calls) -> int:
        """How many messages of `sender` have been received; the trace then names the sender."""
        receives = [*self.channels[sender].receives.values(), *self.from_anyone]
        return sum(not calls[k].is_open and calls[k].peer == sender for k in receives)


class Matching:
    """All matches and queues of a run."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.matches: dict[tuple[str, int], CollectiveMatch] = {}
        self.queues: dict[tuple[str, int, int], P2PQueue] = defaultdict(P2PQueue)

    def add(self, call: Call) -> None:
        """Add a call that has just begun to its match or queue."""
        if call.nth is not None:
            self.match(call).keys[call.rank] = call.key
        else:
            self.queue(call).add(call)

    def match(self, call: Call) -> CollectiveMatch:
        """The match that a collective belongs to."""
        assert call.nth is not None
        name = call.group, call.nth
        if name not in self.matches:
            self.matches[name] = CollectiveMatch(*name, call.members)
        return self.matches[name]

    def queue(self, call: Call) -> P2PQueue:
        """The queue that a message belongs to."""
        receiver = call.peer if call.op == "send" else call.rank
        assert receiver is not None
        return self.queues[call.group, receiver, call.tag]

    def may_complete(self, call: Call) -> bool:
        """Whether a call that is still open can end without any other call being made."""
        if call.completed is not None:
            return True
        if call.nth is not None:
            return not self.match(call).missing
        return self.queue(call).may_complete(call, self.calls)

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

    def forget(self) -> None:
        """Forget the older half of the finished calls, because a program may run for days."""
        for name, match in list(self.matches.items())[: len(self.matches) // 2]:
            if not match.missing and all(map(_is_over, match.calls(self.calls))):
                del self.matches[name]
                for key in match.keys.values():
                    del self.calls[key]
        for queue in self.queues.values():
            queue.forget(self.calls)


def _is_over(call: Call) -> bool:
    """Whether nothing more depends on it; a failed one may be the cause of a later error."""
    return call.failed is None and (call.end is not None or call.completed is not None)
