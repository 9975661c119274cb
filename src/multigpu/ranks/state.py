"""What each rank is doing, as far as it has said so, and which calls of them belong together.

The n-th collective that a rank makes in a group matches the n-th of every other member: a
`CollectiveMatch`. Messages to one rank with one tag in one group are in one `P2PQueue`; those from
one sender are a `Channel` and arrive in the order in which they were sent.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from multigpu.ranks.process_tree import Threads
from multigpu.ranks.trace import ROOTED, Call


@dataclass
class RankState:
    """One rank: how far it is, what its threads wait for, how it ended."""

    rank: int
    calls: dict[int, Call] = field(default_factory=dict)  # by the rank's own number
    main: int | None = None  # native id of its main thread
    waits: dict[int, int] = field(default_factory=dict)  # thread -> number of the call
    limited: set[int] = field(default_factory=set)  # threads whose wait has a time limit
    joins: dict[int, int] = field(default_factory=dict)  # thread -> thread that it joins
    threads: set[int] = field(default_factory=set)  # started by the program, or communicating
    raised: Mapping[str, Any] | None = None  # its `raised` frame
    uncaught: list[Mapping[str, Any]] = field(default_factory=list)  # `thread_raised` frames
    left: Mapping[str, Any] | None = None  # its `left` frame: os._exit was called
    returned: bool = False
    finished: bool = False  # its threads have ended, too: it only waits for the other ranks
    status: int | None = None  # of the process, once it is gone

    def hear(self, frame: Mapping[str, Any], call: Call | None) -> None:
        """Take in one frame; `call` is the one that it is about."""
        phase = frame["phase"]
        if call is not None:
            self.calls[call.id] = call
        if phase == "started":
            self.main = frame.get("thread", frame.get("pid"))
        elif phase == "call":
            self.threads.add(frame["thread"])
        elif phase == "wait":
            self.threads.add(frame["thread"])
            self.waits[frame["thread"]] = frame["id"]
            self.limited.discard(frame["thread"])
            if frame.get("limit") is not None:
                self.limited.add(frame["thread"])
        elif phase in ("done", "failed"):
            self.waits = {t: number for t, number in self.waits.items() if number != frame["id"]}
        elif phase == "thread_started":
            self.threads.add(frame["thread"])
        elif phase == "thread_ended":
            self.threads.discard(frame["thread"])
        elif phase == "thread_raised":
            self.uncaught.append(frame)
        elif phase == "joining":
            self.joins[frame["thread"]] = frame["on"]
        elif phase == "joined":
            self.joins.pop(frame["thread"], None)
        elif phase == "raised":
            self.raised = frame
        elif phase == "left":
            self.left = frame
        elif phase == "returned":
            self.returned = True
        elif phase == "holding":
            self.finished = True

    @property
    def gone(self) -> bool:
        """Whether its process is no more."""
        return self.status is not None

    @property
    def over(self) -> bool:
        """Whether its function has ended, in whatever way."""
        return self.returned or self.raised is not None or self.gone

    def waiting_in(self) -> list[Call]:
        """The calls that threads of this rank wait for now; the main thread's comes first."""
        if self.gone:
            return []
        threads = sorted(self.waits, key=lambda thread: thread != self.main)
        calls = [self.calls[number] for number in map(self.waits.__getitem__, threads)]
        return [call for call in calls if call.is_open]

    @property
    def has_a_limit(self) -> bool:
        """Whether a thread waits with a time limit: its wait ends in any case, with an error."""
        return any(self._calls(thread) for thread in self.limited)

    def can_act(self, threads: Threads) -> bool:
        """Whether any thread may go on without another rank's help.

        A thread counts if it is the main one, was started by the program or has communicated, or
        if it works. It cannot go on while it waits for a call, joins a thread that cannot go on or
        sleeps on a lock. A lock may be opened by any other thread, also by one that has said that
        it waits for a call and has not got so far yet.
        """
        if self.gone:
            return False
        waiting = bool(self.waiting_in())
        if not self.over and not waiting:
            return True  # not begun yet, or busy with something else than communication
        known = self.threads | ({self.main} if self.main is not None else set())
        counted = known - {self.main} if self.over else known
        chains = {thread: self._joined(thread) for thread in counted}
        held = {thread for thread, chain in chains.items() if not self._calls(chain[-1])}
        may_act = [threads.may_act(self.rank, each) for thread in held for each in chains[thread]]
        if any(may_act):
            return True
        return bool(waiting or held) and threads.others_work(self.rank, held or known)

    def _joined(self, thread: int) -> list[int]:
        """A thread, the one that it joins, the one that this one joins, and so on."""
        chain = [thread]
        while chain[-1] in self.joins and self.joins[chain[-1]] not in chain:
            chain.append(self.joins[chain[-1]])
        return chain

    def _calls(self, thread: int) -> bool:
        """Whether a thread waits for an open call."""
        number = self.waits.get(thread)
        return number is not None and self.calls[number].is_open

    def last_call(self) -> Call | None:
        """The call that was begun last."""
        return next(reversed(self.calls.values()), None)

    def own_calls(self, op: str, group: str) -> int:
        """How many calls of this kind it has begun in a group."""
        return sum(call.op == op and call.group == group for call in self.calls.values())

    def to_dict(self) -> dict[str, Any]:
        """For `Finding.details`: plain data."""
        waiting = [_plain(call) for call in self.waiting_in()]
        last = self.last_call()
        return {
            "rank": self.rank,
            "state": self._word(bool(waiting)),
            "waits": waiting,
            "last": _plain(last) if last else None,
            "status": self.status,
        }

    def _word(self, waiting: bool) -> str:
        if self.raised is not None:
            return "raised"
        if self.returned:
            return "returned"
        if self.gone:
            return "gone"
        return "waiting" if waiting else "computing"


def _plain(call: Call) -> dict[str, Any]:
    return {
        "op": call.op,
        "via": call.via,
        "group": call.group,
        "members": list(call.members),
        "nth": call.nth,
        "root": call.root,
        "peer": call.peer,
        "tag": call.tag,
        "file": call.file,
        "line": call.line,
        "place": call.place,
    }


def open_calls(states: Iterable[RankState]) -> Iterator[Call]:
    """Every call of every living rank that it has not seen the end of."""
    for state in states:
        if not state.gone:
            yield from (call for call in state.calls.values() if call.is_open)


Key = tuple[int, int]  # a call: its rank, and the rank's own number for it
Calls = dict[Key, Call]


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
        """Whether some members can be done before others have begun.

        Where one rank gives or takes, those that have met it may be: how the backend passes the
        data on is its own matter.
        """
        here = self.calls(calls)
        return here[0].op in ROOTED and any(call.rank == call.root for call in here)


@dataclass
class Channel:
    """The messages from one sender in a queue: the n-th send goes to the n-th receive."""

    sends: list[Key] = field(default_factory=list)
    receives: list[Key] = field(default_factory=list)


@dataclass
class P2PQueue:
    """Messages to one rank, with one tag, in one group."""

    channels: dict[int, Channel] = field(default_factory=lambda: defaultdict(Channel))  # by sender
    from_anyone: list[Key] = field(default_factory=list)  # receives that take any sender's
    places: dict[Key, int] = field(default_factory=dict)  # in the channel, on its side

    def add(self, call: Call) -> None:
        """Put in a call that has just begun."""
        key = call.rank, call.id
        sender = call.rank if call.op == "send" else call.peer
        if sender is None:
            self.from_anyone.append(key)
            return
        channel = self.channels[sender]
        side = channel.sends if call.op == "send" else channel.receives
        self.places[key] = len(side)
        side.append(key)

    def pair(self, call: Call) -> tuple[Key, Key] | None:
        """The send and the receive that meet, if the other side of `call` has been made.

        None where receives from anyone make the pairs depend on who was first.
        """
        if self.from_anyone:
            return None
        channel = self._channel(call)
        place = self.places[call.rank, call.id]
        if place >= min(len(channel.sends), len(channel.receives)):
            return None
        return channel.sends[place], channel.receives[place]

    def may_complete(self, call: Call, calls: Calls) -> bool:
        """Whether the other side of an open call has been made, or may have been."""
        if not self.from_anyone:
            return self.pair(call) is not None
        if call.op == "send":
            open_ones = [*self._channel(call).receives, *self.from_anyone]
            taken = self._arrived(call.rank, calls) + sum(calls[k].is_open for k in open_ones)
            return self.places[call.rank, call.id] < taken
        senders = list(self.channels) if call.peer is None else [call.peer]
        return any(
            len(self.channels[sender].sends) > self._arrived(sender, calls) for sender in senders
        )

    def unmatched(self, calls: Calls) -> list[Key]:
        """Sends and receives that found no other side."""
        found: list[Key] = []
        for sender, channel in self.channels.items():
            arrived = self._arrived(sender, calls) if self.from_anyone else len(channel.receives)
            found += [*channel.sends[arrived:], *channel.receives[len(channel.sends) :]]
        return found + [key for key in self.from_anyone if calls[key].is_open]

    def _channel(self, call: Call) -> Channel:
        sender = call.rank if call.op == "send" else call.peer
        assert sender is not None
        return self.channels[sender]

    def _arrived(self, sender: int, calls: Calls) -> int:
        """How many messages of `sender` have been received: the trace names the sender then."""
        receives = [*self.channels[sender].receives, *self.from_anyone]
        return sum(not calls[k].is_open and calls[k].peer == sender for k in receives)


class Matching:
    """All matches and queues of a run."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls  # grows elsewhere: the same calls as in the trace
        self.matches: dict[tuple[str, int], CollectiveMatch] = {}
        self.queues: dict[tuple[str, int, int], P2PQueue] = defaultdict(P2PQueue)

    def add(self, call: Call) -> None:
        """Put a call that has just begun to those that it belongs to."""
        if call.nth is not None:
            self.match(call).keys[call.rank] = call.rank, call.id
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

        Who receives from any rank waits for those that are not `over`, as long as there are some.
        """
        if call.nth is not None:
            return self.match(call).missing
        if call.peer is not None:
            return (call.peer,)
        others = tuple(rank for rank in call.members if rank != call.rank)
        return tuple(rank for rank in others if rank not in over) or others
