"""What each rank is doing: as far as it has reported, and as the system shows its threads."""

import contextlib
import os
import platform
import re
import signal
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from multigpu.ranks.calls import FOLLOW_UP_PHASES, MESSAGE_OPS, Call, Span

# What a backend says in a rank when another one has died: "Connection closed by peer".
PEER_DIED = re.compile(
    r"closed by peer|connection reset|connection refused|broken pipe|unbound ?buffer"
    r"|timed out|wait timeout|application timeout|socket (closed|timeout)|recv.* 0 bytes"
    r"|remote process|nccl.*(abort|remote)|aborted|transport/tcp",
    re.IGNORECASE,
)

KEPT = 50_000  # calls of one rank, because a program may communicate for days
NO_LIMIT = 1800.0  # seconds: torch's own limit with gloo, if the program sets none


@dataclass
class RankState:
    """One rank: its progress, what its threads wait for, how it ended."""

    rank: int
    calls: dict[int, Call] = field(default_factory=dict)  # by its numbers, but for forgotten ones
    record: dict[int, Call] = field(default_factory=dict)  # its last KEPT calls
    spans: deque[Span] = field(default_factory=lambda: deque(maxlen=KEPT))
    last: Call | None = None  # the call that was begun last
    made: Counter[tuple[str, str]] = field(default_factory=Counter)  # calls by (op, group)
    places: Counter[tuple[str, int, str]] = field(default_factory=Counter)  # by line and group
    main: int | None = None  # native id of its main thread
    # thread -> the call that it waits for, and when the time limit of this wait ends
    waits: dict[int, tuple[Call, float]] = field(default_factory=dict)
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
        call = None
        if frame["phase"] in FOLLOW_UP_PHASES:
            call = self.record.get(frame["id"]) or self.calls.get(frame["id"])
            if call is not None:
                call.hear(frame)
        match frame["phase"]:
            case "started":
                self.main = frame["thread"]
            case "call":
                call = self.last = Call.of(self.rank, frame)
                self.calls[call.id] = self.record[call.id] = call
                self.record.pop(call.id - KEPT, None)  # the numbers count up
                self.threads.add(call.thread)
                self.made[call.op, call.group] += 1
                call.nth_alike = self.made[call.op, call.group]
                self.places[call.file, call.line, call.group] += 1
                if not call.is_async:
                    self.waits[call.thread] = call, inf
            case "wait" if call is not None:
                limit = frame.get("limit") or inf
                ends = frame["time"] + limit if limit < NO_LIMIT else inf
                self.threads.add(frame["thread"])
                self.waits[frame["thread"]] = call, ends
            case "done" | "failed":
                self.waits = {t: wait for t, wait in self.waits.items() if wait[0] is not call}
            case "span":
                self.spans.append(Span(self.rank, frame["label"], frame["start"], frame["end"]))
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
        waits = sorted(self.open_waits().items(), key=lambda wait: wait[0] != self.main)
        return [call for _, (call, _) in waits]

    def collectives(self, group: str) -> int:
        return sum(
            n for (op, name), n in self.made.items() if name == group and op not in MESSAGE_OPS
        )

    def open_waits(self) -> dict[int, tuple[Call, float]]:
        """`waits` without those for calls that are over."""
        return {
            thread: (call, ends)
            for thread, (call, ends) in self.waits.items()
            if call.is_open and call.completed is None
        }

    def waits_until(self) -> float:
        """When the earliest time limit of this rank's waits ends."""
        return min((ends for _, ends in self.open_waits().values()), default=inf)

    def can_act(self, threads: "SystemThreads") -> bool:
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
        in_calls = self.open_waits()
        held = {thread for thread, chain in chains.items() if chain[-1] not in in_calls}
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


# Threads. One that waits on a lock without a time limit cannot go on unless another thread opens
# it. One that waits for a set time, for another process or for a file, or computes, may go on
# without this process. The difference decides whether no progress is a deadlock. Linux tells it in
# /proc/PID/task/TID/syscall (to a parent process); where that cannot be read, every thread may go
# on, and a deadlock that hides behind one is left to the timeout.

_CALLS = {  # numbers of system calls: (futex, those that sleep for a set time)
    "x86_64": ("202", ("35", "230")),
    "aarch64": ("98", ("101", "115")),
}
FUTEX, SLEEPS = _CALLS.get(platform.machine(), ("", ()))
AWAKE = ("running", "-1")  # -1: in no call and off its core, while a page comes or it is stopped
EXITING = 4  # flag of a thread that is on its way out
PRIVATE = 128  # flag of a futex that no other process can open; multiprocessing's have it not


class SystemThreads:
    """The threads of the ranks with these process ids, as the system shows them to a `Watch`."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._sleeps: dict[tuple[int, int], Any] = {}  # as they were found last

    def may_act(self, rank: int, thread: int) -> bool:
        """Whether this thread exists and may continue without another thread.

        Two looks have to find it in the same sleep, because threads take turns through locks, too,
        and one look does not see several threads at the same moment.
        """
        pid = self._pids[rank]
        doing = _doing(pid, thread)
        if doing is None:
            return False
        number, *arguments = doing
        if number != FUTEX or len(arguments) < 4:
            return True
        _, operation, _, limit = (int(argument, 16) for argument in arguments[:4])
        if limit != 0 or not operation & PRIVATE:
            return True
        turns: list[str] = []  # how often it has given up its core, of itself and otherwise
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/status") as file:
            turns = [line for line in file if "ctxt_switches" in line]
        before = self._sleeps.get((rank, thread))
        self._sleeps[rank, thread] = doing, turns
        return (doing, turns) != before

    def others_work(self, rank: int, known: set[int]) -> bool:
        """Whether a thread other than `known` computes, or sleeps for a set time."""
        pid = self._pids[rank]
        with contextlib.suppress(OSError):
            others = {int(name) for name in os.listdir(f"/proc/{pid}/task")} - known
            found = (_doing(pid, thread) for thread in others)
            return any(doing and doing[0] in (*AWAKE, *SLEEPS) for doing in found)
        return False

    def dying(self, rank: int) -> bool:
        """Whether the process is about to end: it was killed, or has exited.

        All its threads have to end first, and on a busy machine each waits for its turn.
        """
        with contextlib.suppress(OSError), open(f"/proc/{self._pids[rank]}/stat") as file:
            state, *numbers = file.read().rpartition(")")[2].split()
            return state in "ZX" or bool(int(numbers[5]) & EXITING)
        return False


def _doing(pid: int, thread: int) -> list[str] | None:
    """The system call that a thread is in, with its arguments; None if the thread is gone."""
    folder = f"/proc/{pid}/task/{thread}"
    try:
        with open(f"{folder}/syscall") as file:
            return file.read().split() or ["unknown"]
    except OSError:
        there = os.path.isdir(folder) or not os.path.isdir("/proc/self")
        return ["unknown"] if there else None
