"""Listens to the ranks of one run and says what is wrong with it, if something is.

    watch = Watch(4, timeout=60.0)
    watch.hear(2, frame)                        # each frame, as it comes
    watch.ended(2, status)                      # a process is gone
    finding = watch.look(now, thread_alive)     # every 20 ms: None while all is well
    finding = watch.final()                     # all ranks are over

It knows nothing of processes and pipes: plain frames come in, findings go out.  Verdicts come in
this order: the earliest real exception, a death, a mismatch, a proven deadlock, no progress.
"""

from collections.abc import Mapping
from typing import Any

from multigpu.ranks.failures import died, exception_found, exit_found, is_follow_up
from multigpu.ranks.findings import Finding
from multigpu.ranks.states import RankState, ThreadAlive
from multigpu.ranks.trace import Trace, TraceBuilder
from multigpu.ranks.wording import ranks_in_words

GATHER = 0.1  # seconds after the first failure, for those of other ranks to come in
CAUSE = 1.0  # seconds for the cause of a follow-up error to show itself


class Watch:
    """One run: what its ranks have said, and what follows from it."""

    def __init__(self, world_size: int, *, timeout: float | None) -> None:
        self._states = [RankState(rank) for rank in range(world_size)]
        self._builder = TraceBuilder(world_size)
        self._timeout = timeout
        self._stirred = True  # something was heard since the last look
        self._last = 0.0  # when something was heard last, by the clock of `look`
        self._failed: float | None = None  # when the first failure was seen

    def hear(self, rank: int, frame: Mapping[str, Any]) -> None:
        """Take in one frame of a rank."""
        self._stirred = True
        call = self._builder.hear(rank, frame)
        self._states[rank].hear(frame, call)

    def stir(self) -> None:
        """A rank has printed something: it makes progress."""
        self._stirred = True

    def ended(self, rank: int, status: int) -> None:
        """The process of a rank is gone: its exit code, negative for a signal."""
        self._stirred = True
        self._states[rank].status = status

    def look(self, now: float, thread_alive: ThreadAlive) -> Finding | None:
        """What is wrong at this moment (`now` is `time.monotonic()`), None while nothing is."""
        if self._stirred:
            self._stirred, self._last = False, now
        return self._failure(now) or self._no_progress(now)

    def final(self) -> Finding | None:
        """What is wrong with a run whose ranks are all over."""
        return self._any_failure()

    @property
    def trace(self) -> Trace:
        """The trace so far."""
        return self._builder.trace()

    def _failure(self, now: float) -> Finding | None:
        """An exception or a death, after a moment in which others can add theirs."""
        if not any(state.raised or died(state) for state in self._states):
            return None
        if self._failed is None:
            self._failed = now
        since = now - self._failed
        real = any(died(s) or (s.raised and not is_follow_up(s)) for s in self._states)
        if since < (GATHER if real else CAUSE) and not all(s.over for s in self._states):
            return None
        return self._any_failure()

    def _any_failure(self) -> Finding | None:
        states = self._states
        found = exception_found(states)
        dead = exit_found(states)
        if found and dead:
            return dead if _came_first(states) else found
        return found or dead or exception_found(states, follow_ups=True)

    def _no_progress(self, now: float) -> Finding | None:
        quiet = now - self._last
        if self._timeout is None or quiet < self._timeout or all(s.over for s in self._states):
            return None
        unfinished = [state for state in self._states if not state.over]
        busy = [state for state in unfinished if not state.waiting_in()] or unfinished
        ranks = tuple(state.rank for state in busy)
        return Finding(
            "no_progress",
            ranks,
            f"{ranks_in_words(ranks)} said nothing for {quiet:.0f} s.",
            "an endless loop, a lock that nobody opens, or work that needs more time than "
            "`timeout` seconds without a collective.",
            {"ranks": [state.to_dict() for state in self._states]},
        )


def _came_first(states: list[RankState]) -> bool:
    """Whether a rank that left by `os._exit` did so before the earliest exception."""
    left = [s.left["time"] for s in states if died(s) and s.left is not None]
    raised = [s.raised["time"] for s in states if s.raised and not is_follow_up(s)]
    return bool(left) and min(left) < min(raised)
