"""Tells a worker that hangs from one that is slow, or has to wait because the machine is busy."""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from multigpu.ranks.family import Signs
from multigpu.ranks.limits import Limits

Excess = Literal["memory", "processes", "busy", "blocked", "slow"]

QUIET_SHARE = 0.05  # a blocked worker uses less of a core than this
AWAKE_SHARE = 0.1  # and is found awake in fewer of the looks than this


@dataclass
class Pulse:
    """The vital signs of a worker over the last seconds.

    A worker that waits for a core is runnable and a worker that is blocked is not, however busy
    the machine is.  That is what makes the difference here, and not the clock.
    """

    limits: Limits
    began: float
    own_memory: int  # what every forked process holds from the start, in bytes
    _looks: deque[tuple[float, Signs, int]] = field(default_factory=deque)

    def judge(self, now: float, signs: Signs, heard: int) -> Excess | None:
        """The limit that is passed at this moment, if one is.

        ``heard`` counts the bytes that came from the worker.  Who says something is not blocked:
        it may only wait until we listen.
        """
        if signs.memory - signs.members * self.own_memory > self.limits.host_memory:
            return "memory"
        if signs.members > self.limits.processes:
            return "processes"
        if signs.cpu > self.limits.cpu:
            return "busy"
        if now - self.began > self.limits.wall:
            return "slow"
        self._looks.append((now, signs, heard))
        return "blocked" if self._blocked(now) else None

    def _blocked(self, now: float) -> bool:
        if now - self._looks[0][0] < self.limits.idle:
            return False
        (_, first, before), (_, last, heard) = self._looks[0], self._looks[-1]
        quiet = last.cpu - first.cpu < QUIET_SHARE * self.limits.idle and heard == before
        awake = sum(signs.runnable for _, signs, _ in self._looks)
        blocked = quiet and awake < AWAKE_SHARE * len(self._looks)
        while now - self._looks[0][0] >= self.limits.idle:
            self._looks.popleft()
        return blocked
