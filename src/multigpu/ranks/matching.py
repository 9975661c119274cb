"""Which calls of different ranks belong together.

The n-th collective that a rank makes in a group meets the n-th of every other member: a `Meeting`.
Messages to one rank with one tag in one group lie in its `Mailbox`; those from one sender arrive
in the order in which they were sent.
"""

from collections import defaultdict
from collections.abc import Container
from dataclasses import dataclass, field

from multigpu.ranks.calls import ROOTED, Call

Key = tuple[int, int]  # a call: its rank, and the rank's own number for it
Calls = dict[Key, Call]


@dataclass
class Meeting:
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
class Lane:
    """The messages from one sender in a mailbox: the n-th send goes to the n-th receive."""

    sends: list[Key] = field(default_factory=list)
    receives: list[Key] = field(default_factory=list)


@dataclass
class Mailbox:
    """Messages to one rank, with one tag, in one group."""

    lanes: dict[int, Lane] = field(default_factory=lambda: defaultdict(Lane))  # by sender
    from_anyone: list[Key] = field(default_factory=list)  # receives that take any sender's
    places: dict[Key, int] = field(default_factory=dict)  # in the lane, on its side

    def add(self, call: Call) -> None:
        """Put in a call that has just begun."""
        key = call.rank, call.id
        sender = call.rank if call.op == "send" else call.peer
        if sender is None:
            self.from_anyone.append(key)
            return
        lane = self.lanes[sender]
        side = lane.sends if call.op == "send" else lane.receives
        self.places[key] = len(side)
        side.append(key)

    def pair(self, call: Call) -> tuple[Key, Key] | None:
        """The send and the receive that meet, if the other side of `call` has been made.

        None where receives from anyone make the pairs depend on who was first.
        """
        if self.from_anyone:
            return None
        lane = self._lane(call)
        place = self.places[call.rank, call.id]
        if place >= min(len(lane.sends), len(lane.receives)):
            return None
        return lane.sends[place], lane.receives[place]

    def may_complete(self, call: Call, calls: Calls) -> bool:
        """Whether the other side of an open call has been made, or may have been."""
        if not self.from_anyone:
            return self.pair(call) is not None
        if call.op == "send":
            open_ones = [*self._lane(call).receives, *self.from_anyone]
            taken = self._arrived(call.rank, calls) + sum(calls[k].is_open for k in open_ones)
            return self.places[call.rank, call.id] < taken
        senders = list(self.lanes) if call.peer is None else [call.peer]
        return any(
            len(self.lanes[sender].sends) > self._arrived(sender, calls) for sender in senders
        )

    def unmatched(self, calls: Calls) -> list[Key]:
        """Sends and receives that found no other side."""
        found: list[Key] = []
        for sender, lane in self.lanes.items():
            arrived = self._arrived(sender, calls) if self.from_anyone else len(lane.receives)
            found += [*lane.sends[arrived:], *lane.receives[len(lane.sends) :]]
        return found + [key for key in self.from_anyone if calls[key].is_open]

    def _lane(self, call: Call) -> Lane:
        sender = call.rank if call.op == "send" else call.peer
        assert sender is not None
        return self.lanes[sender]

    def _arrived(self, sender: int, calls: Calls) -> int:
        """How many messages of `sender` have been received: the trace names the sender then."""
        receives = [*self.lanes[sender].receives, *self.from_anyone]
        return sum(not calls[k].is_open and calls[k].peer == sender for k in receives)


class Matching:
    """All meetings and mailboxes of a run."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls  # grows elsewhere: the same calls as in the trace
        self.meetings: dict[tuple[str, int], Meeting] = {}
        self.mailboxes: dict[tuple[str, int, int], Mailbox] = defaultdict(Mailbox)

    def add(self, call: Call) -> None:
        """Put a call that has just begun to those that it belongs to."""
        if call.nth is not None:
            self.meeting(call).keys[call.rank] = call.rank, call.id
        else:
            self.mailbox(call).add(call)

    def meeting(self, call: Call) -> Meeting:
        """The meeting that a collective belongs to."""
        assert call.nth is not None
        name = call.group, call.nth
        if name not in self.meetings:
            self.meetings[name] = Meeting(*name, call.members)
        return self.meetings[name]

    def mailbox(self, call: Call) -> Mailbox:
        """The mailbox that a message belongs to."""
        receiver = call.peer if call.op == "send" else call.rank
        assert receiver is not None
        return self.mailboxes[call.group, receiver, call.tag]

    def may_complete(self, call: Call) -> bool:
        """Whether a call that is still open can end without any other call being made."""
        if call.completed is not None:
            return True
        if call.nth is not None:
            return not self.meeting(call).missing
        return self.mailbox(call).may_complete(call, self.calls)

    def waits_for(self, call: Call, over: Container[int]) -> tuple[int, ...]:
        """The ranks that would have to make a call for this one to end.

        Who receives from any rank waits for those that are not `over`, as long as there are some.
        """
        if call.nth is not None:
            return self.meeting(call).missing
        if call.peer is not None:
            return (call.peer,)
        others = tuple(rank for rank in call.members if rank != call.rank)
        return tuple(rank for rank in others if rank not in over) or others
