"""What each rank is doing, as far as it has reported."""

import re
import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from multigpu.ranks.calls import MESSAGES, Call, Calls
from multigpu.ranks.process_tree import SystemThreads

# What a backend says in a rank when another one has died: "Connection closed by peer".
PEER_DIED = re.compile(
    r"closed by peer|connection reset|connection refused|broken pipe|unbound ?buffer"
    r"|timed out|wait timeout|application timeout|socket (closed|timeout)|recv.* 0 bytes"
    r"|remote process|nccl.*(abort|remote)|aborted|transport/tcp",
    re.IGNORECASE,
)

NO_LIMIT = 1800.0  # seconds: torch's own limit with gloo, if the program sets none


@dataclass
class RankState:
    """One rank: its progress, what its threads wait for, how it ended."""

    rank: int
    calls: Calls  # but for those that are forgotten
    last: Call | None = None  # the call that was begun last
    made: Counter[tuple[str, str]] = field(default_factory=Counter)  # calls by (op, group)
    places: set[tuple[str, int]] = field(default_factory=set)  # lines that it has called from
    main: int | None = None  # native id of its main thread
    waits: dict[int, int] = field(default_factory=dict)  # thread -> number of the call
    ends: dict[int, float] = field(default_factory=dict)  # thread -> when its time limit ends
    joins: dict[int, int] = field(default_factory=dict)  # thread -> thread that it joins
    threads: set[int] = field(default_factory=set)  # started by the program, or communicating
    raised: Mapping[str, Any] | None = None  # its `raised` frame
    uncaught: list[Mapping[str, Any]] = field(default_factory=list)  # `thread_raised` frames
    left: Mapping[str, Any] | None = None  # its `left` frame: os._exit was called
    returned: bool = False
    finished: bool = False  # its threads have ended, too: it only waits for the other ranks
    status: int | None = None  # of the process, once it is gone

    def hear(self, frame: Mapping[str, Any]) -> Call | None:
        """Take in one frame, and return the call that it is about, if any."""
        call = self.calls.hear(frame)
        if call is None and self.last is not None and frame.get("id") == self.last.id:
            self.last.hear(frame)  # it is forgotten, and still the last
        match frame["phase"]:
            case "started":
                self.main = frame.get("thread", frame.get("pid"))
            case "call":
                assert call is not None
                self.last = call
                self.threads.add(call.thread)
                self.made[call.op, call.group] += 1
                call.nth_alike = self.made[call.op, call.group]
                self.places.add((call.file, call.line))
                if not call.is_async:
                    self._wait(frame)
            case "wait":
                self.threads.add(frame["thread"])
                self._wait(frame)
            case "done" | "failed":
                self.waits = {t: n for t, n in self.waits.items() if n != frame["id"]}
            case "thread_started":
                self.threads.add(frame["thread"])
            case "thread_ended":
                self.threads.discard(frame["thread"])
            case "thread_raised":
                self.uncaught.append(frame)
            case "joining":
                self.joins[frame["thread"]] = frame["on"]
            case "joined":
                self.joins.pop(frame["thread"], None)
            case "raised":
                self.raised = frame
            case "left":
                self.left = frame
            case "returned":
                self.returned = True
            case "holding":
                self.finished = True
        return call

    def _wait(self, frame: Mapping[str, Any]) -> None:
        self.waits[frame["thread"]] = frame["id"]
        limit = frame.get("limit") or inf
        self.ends[frame["thread"]] = frame["time"] + limit if limit < NO_LIMIT else inf

    @property
    def gone(self) -> bool:
        return self.status is not None

    @property
    def over(self) -> bool:
        """Whether its function has ended, in whatever way."""
        return self.returned or self.raised is not None or self.gone

    @property
    def died(self) -> bool:
        """Whether it ended without having returned or raised."""
        return (self.gone or self.left is not None) and not self.returned and self.raised is None

    def waiting_in(self) -> list[Call]:
        """The calls that threads of this rank wait for now; the main thread's comes first."""
        if self.gone:
            return []
        threads = sorted(self.waits, key=lambda thread: thread != self.main)
        return [call for call in map(self._waited_for, threads) if call]

    def collectives(self, group: str) -> int:
        return sum(n for (op, name), n in self.made.items() if name == group and op not in MESSAGES)

    def waits_until(self) -> float:
        """When the earliest time limit of this rank's waits ends."""
        return min((self.ends[t] for t in self.waits if self._waited_for(t)), default=inf)

    def _waited_for(self, thread: int) -> Call | None:
        call = self.calls.get(self.waits.get(thread, -1))
        return call if call and call.is_open else None

    def can_act(self, threads: SystemThreads) -> bool:
        """Whether any thread may continue without another rank.

        A thread counts if it is the main one, was started by the program or has communicated, or if
        it works. It cannot continue while it waits for a call, joins a thread that cannot continue
        or sleeps on a lock. A lock may be released by any other thread, even by one that has
        reported a wait for a call and has not reached it yet.
        """
        if self.gone:
            return False
        waiting = bool(self.waiting_in())
        if not self.over and not waiting:
            return True  # not begun yet, or busy with something else than communication
        known = self.threads | ({self.main} if self.main is not None else set())
        chains = {thread: self._joined(thread) for thread in known}
        if self.over:
            chains.pop(self.main, None)  # type: ignore[arg-type]
        held = {thread for thread, chain in chains.items() if not self._waited_for(chain[-1])}
        # Of each thread, even when one may: the next look compares with what this one finds.
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

    def was_inside(self) -> bool:
        """Whether the rank waited for a call at its last report.

        If the process aborted, a call that was not waited for yet is enough, because the backend's
        own thread works on it, and gloo's thread aborts when sizes do not fit.
        """
        aborted = self.status == -signal.SIGABRT
        calls = self.calls.values()
        return any(call.is_open and (aborted or call.waited is not None) for call in calls)

    def is_follow_up(self) -> bool:
        """Whether this rank's exception only follows from another rank's failure."""
        if self.raised is None:
            return False
        if self.raised.get("inside") is not None and PEER_DIED.search(self.raised.get("text", "")):
            return True
        return any(call.failed and PEER_DIED.search(call.failed) for call in self.calls.values())

    def failed_inside(self) -> bool:
        """Whether it failed during a call, so that the call itself may have failed."""
        if self.raised is not None:
            return self.raised.get("inside") is not None or self.is_follow_up()
        return self.status is not None and self.status < 0 and self.was_inside()

    def to_dict(self) -> dict[str, Any]:
        """For `Finding.details`: plain data."""
        names = ("op", "via", "group", "nth", "root", "peer", "tag", "file", "line", "place")
        waits = [
            {"members": list(call.members), **{name: getattr(call, name) for name in names}}
            for call in self.waiting_in()
        ]
        word = "waiting" if waits else "computing"
        if self.over:
            word = "raised" if self.raised else "returned" if self.returned else "gone"
        return {"rank": self.rank, "state": word, "waits": waits}
