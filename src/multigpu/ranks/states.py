"""What each rank is doing, as far as it has said so."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from multigpu.ranks.calls import Call
from multigpu.ranks.threads import Threads


@dataclass
class RankState:
    """One rank: how far it is, what its threads wait for, how it ended."""

    rank: int
    calls: dict[int, Call] = field(default_factory=dict)  # by the rank's own number
    main: int | None = None  # native id of its main thread
    waits: dict[int, int] = field(default_factory=dict)  # thread -> number of the call
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
