"""How much processes may use, how much they use, and which of them hang."""

import contextlib
from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import Literal

import psutil

from multigpu.ranks.process_tree import descendants, runnable

MIB = 2**20
Excess = Literal["memory", "processes", "busy", "blocked", "slow"]

QUIET_SHARE = 0.05  # a blocked worker uses less of a core than this
AWAKE_SHARE = 0.1  # and is found awake in fewer of the looks than this


@dataclass(frozen=True)
class Limits:
    """Generous for right answers, which need about a tenth of a second and 50 MB.

    A hang is detected from what the worker does and not by the clock, so that a busy machine does
    not fail an answer: either it has used ``cpu`` seconds of processor time, or for ``idle``
    seconds it used next to none although it was not waiting for a core.  ``wall`` is only a last
    resort.
    """

    cpu: float = 6.0
    idle: float = 3.0
    wall: float = 60.0
    host_memory: int = 2048 * MIB  # beyond what the warm server already holds
    file_size: int | None = 256 * MIB  # None: any
    processes: int = 64
    kept_output: int = 20_000  # bytes; the rest is counted and dropped
    answer: int = 512 * MIB
    grace: float = 0.5  # for child processes to end by themselves after the worker


# For code that is not judged: it may take as long and as much as it likes.
UNLIMITED = Limits(
    cpu=inf,
    idle=inf,
    wall=inf,
    host_memory=2**63,
    file_size=None,
    processes=2**31,
    kept_output=2**24,
    answer=2**50,
)


@dataclass(frozen=True)
class ResourceUse:
    """What a tree of processes uses at one moment."""

    cpu: float  # seconds used so far, by living members
    memory: int  # bytes
    runnable: bool  # some thread runs, waits for a core or for the disk
    members: int


def resource_use() -> ResourceUse:
    """What all descendants of this process use together."""
    cpu, memory, awake, tree = 0.0, 0, False, descendants()
    for process in tree:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            cpu += times.user + times.system
            cpu += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
            memory += own_memory(process)
            awake = awake or runnable(process.pid)
    return ResourceUse(cpu, memory, awake, len(tree))


def own_memory(process: psutil.Process) -> int:
    """The bytes of a process that are not part of a file (on macOS: all that are resident)."""
    memory = process.memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))


@dataclass
class ResourceMonitor:
    """Distinguishes workers that hang from slow ones and from those that wait for a busy machine.

    A worker that waits for a core is runnable and a blocked worker is not, however busy the machine
    is. This state decides, and not the clock.
    """

    limits: Limits
    began: float
    own_memory: int  # what every forked process holds from the start, in bytes
    _looks: deque[tuple[float, ResourceUse, int]] = field(default_factory=deque)
    _most_memory: int = 0

    def judge(
        self, now: float, use: ResourceUse, heard: int, *, loads: bool = False
    ) -> Excess | None:
        """The limit that is passed at this moment, if one is.

        ``heard`` counts the bytes that came from the workers. A worker that sends something is not
        blocked: it may only wait until it is read. ``loads``: one has begun to import torch's
        compiler, which takes 10 s where Python finds no compiled files of it.
        """
        memory = use.memory - use.members * self.own_memory
        if memory > self.limits.host_memory:
            return "memory"
        if use.members > self.limits.processes:
            return "processes"
        # Allocating and freeing memory takes processor time, several times as much on a busy
        # machine. A worker that holds or held a lot gets more time, so that it can pass the limit
        # of memory, which explains more.
        self._most_memory = max(self._most_memory, memory)
        much = self._most_memory > self.limits.host_memory / 4
        if use.cpu > self.limits.cpu * (4 if much or loads else 1):
            return "busy"
        if now - self.began > self.limits.wall:
            return "slow"
        self._looks.append((now, use, heard))
        began, first, before = self._looks[0]
        if now - began < self.limits.idle:
            return None
        quiet = use.cpu - first.cpu < QUIET_SHARE * self.limits.idle and heard == before
        awake = sum(look.runnable for _, look, _ in self._looks)
        blocked = quiet and awake < AWAKE_SHARE * len(self._looks)
        while now - self._looks[0][0] >= self.limits.idle:
            self._looks.popleft()
        return "blocked" if blocked else None
