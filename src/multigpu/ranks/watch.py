"""Listens to the ranks of one run and says what is wrong with it, if something is.

    watch = Watch(4, timeout=60.0)
    watch.hear(2, frame)                        # each frame, as it comes
    watch.ended(2, status)                      # a process is gone
    finding = watch.look(now, threads)          # every 20 ms: None while all is well
    finding = watch.final()                     # all ranks are over

It knows nothing of processes and pipes: plain frames come in, findings go out.  Verdicts come in
this order: the earliest real exception, a death, a mismatch, a proven deadlock, no progress.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from multigpu.ranks.calls import Call
from multigpu.ranks.deadlock import deadlock_found, deadlocked
from multigpu.ranks.failures import (
    died,
    exception_found,
    exit_found,
    failed_inside,
    is_follow_up,
)
from multigpu.ranks.findings import Finding
from multigpu.ranks.matching import Matching, Meeting
from multigpu.ranks.mismatch import (
    collectives_differ,
    difference,
    fewer_collectives,
    message_differs,
    never_received,
)
from multigpu.ranks.silence import no_progress_found
from multigpu.ranks.states import RankState
from multigpu.ranks.threads import Threads
from multigpu.ranks.trace import Trace, TraceBuilder
from multigpu.ranks.uncaught import with_uncaught
from multigpu.ranks.wording import ranks_in_words

GATHER = 0.1  # seconds after the first failure, for those of other ranks to come in
VOTE = 0.25  # seconds for the other members to show whom they agree with
CAUSE = 1.0  # seconds for the cause of a follow-up error to show itself


class Watch:
    """One run: what its ranks have said, and what follows from it."""

    def __init__(self, world_size: int, *, timeout: float | None) -> None:
        self._states = [RankState(rank) for rank in range(world_size)]
        self._builder = TraceBuilder(world_size)
        self._matching = Matching(self._builder.calls)
        self._disputed: Meeting | None = None  # the first whose calls differ
        self._misfit: Finding | None = None  # the first message that does not fit
        self._seen: float | None = None  # when the first of these was seen
        self._timeout = timeout
        self._stirred = True  # something was heard since the last look
        self._last = 0.0  # when something was heard last, by the clock of `look`
        self._stuck = False  # a deadlock was found at the last look
        self._failed: float | None = None  # when the first failure was seen
        self._failures: list[int] = []  # ranks that raised or died, in the order of the news

    def hear(self, rank: int, frame: Mapping[str, Any]) -> None:
        """Take in one frame of a rank."""
        self._stirred = True
        call = self._builder.hear(rank, frame)
        self._states[rank].hear(frame, call)
        if frame["phase"] in ("raised", "left"):
            self._failures.append(rank)
        if call is not None and frame["phase"] == "call":
            self._matching.add(call)
            self._compare(call)

    def stir(self) -> None:
        """A rank has printed something: it makes progress."""
        self._stirred = True

    def ended(self, rank: int, status: int) -> None:
        """The process of a rank is gone: its exit code, negative for a signal."""
        self._stirred = True
        self._states[rank].status = status
        self._failures.append(rank)

    def look(self, now: float, threads: Threads) -> Finding | None:
        """What is wrong at this moment (`now` is `time.monotonic()`), None while nothing is."""
        if self._stirred:
            self._stirred, self._last = False, now
        quiet = now - self._last
        found = self._failure(now, threads) or self._mismatch(now)
        if found is None and self._deadlocked(threads, quiet):
            found = deadlock_found(self._states, self._matching)
        return with_uncaught(found or self._no_progress(quiet), self._states)

    def final(self) -> Finding | None:
        """What is wrong with a run whose ranks are all over."""
        found = self._any_failure() or self._difference() or self._left_over()
        return with_uncaught(found, self._states)

    @property
    def trace(self) -> Trace:
        """The trace so far."""
        return self._builder.trace()

    def _failure(self, now: float, threads: Threads) -> Finding | None:
        """An exception or a death, after a moment in which others can add theirs."""
        if not any(state.raised or died(state) for state in self._states):
            return None
        if self._failed is None:
            self._failed = now
        since = now - self._failed
        real = any(died(s) or (s.raised and not is_follow_up(s)) for s in self._states)
        if not all(s.over for s in self._states):
            to_come = any(threads.dying(s.rank) for s in self._states if not (s.over or died(s)))
            if to_come or since < (GATHER if real else CAUSE):
                return None
        if all(failed_inside(state) for state in self._states if state.raised or died(state)):
            return self._difference() or self._any_failure()
        return self._any_failure()

    def _deadlocked(self, threads: Threads, quiet: float) -> bool:
        """Whether two looks in a row find a deadlock: what ranks say during the first is heard."""
        before = self._stuck
        self._stuck = deadlocked(self._states, self._matching, threads, quiet=quiet)
        return before and self._stuck

    def _any_failure(self) -> Finding | None:
        states = self._states
        found = exception_found(states)
        dead = exit_found(states)
        if found and dead:
            return min(found, dead, key=lambda one: self._failures.index(one.ranks[0]))
        return found or dead or self._failure_without_cause()

    def _failure_without_cause(self) -> Finding | None:
        """A call that failed although no rank is dead: the time limit of its group, most often."""
        found = exception_found(self._states, follow_ups=True)
        if found is None:
            return None
        rank = found.ranks[0]
        failed = [call for call in self._states[rank].calls.values() if call.failed]
        if not failed or self._matching.may_complete(failed[-1]):
            return found
        absent = ranks_in_words(self._matching.waits_for(failed[-1], over=()))
        what = f"{failed[-1].op} at {failed[-1].place}"
        return replace(
            found, usually=f"{absent} had not come to the {what} of rank {rank} by then."
        )

    def _compare(self, call: Call) -> None:
        """Look whether a call that has just begun fits those that it belongs to."""
        calls = self._builder.calls
        if self._disputed or self._misfit:
            return
        if call.nth is not None:
            meeting = self._matching.meeting(call)
            if difference(calls[next(iter(meeting.keys.values()))], call):
                self._disputed = meeting
        elif pair := self._matching.mailbox(call).pair(call):
            send, receive = calls[pair[0]], calls[pair[1]]
            if send.bytes != receive.bytes:
                self._misfit = message_differs(send, receive)

    def _mismatch(self, now: float) -> Finding | None:
        """Calls that do not fit, once all members had time to show on which side they are."""
        if not (self._disputed or self._misfit):
            return None
        if self._seen is None:
            self._seen = now
        whole = self._disputed is None or not self._disputed.missing
        return self._difference() if whole or now - self._seen > VOTE else None

    def _difference(self) -> Finding | None:
        found = self._misfit
        if self._disputed is not None:
            calls = self._disputed.calls(self._builder.calls)
            found = collectives_differ(calls, len(self._states))
        return self._with_states(found)

    def _left_over(self) -> Finding | None:
        calls = self._builder.calls
        boxes = self._matching.mailboxes.values()
        alone = [calls[key] for box in boxes for key in box.unmatched(calls)]
        return self._with_states(
            fewer_collectives(calls.values(), len(self._states))
            or (never_received(alone) if alone else None)
        )

    def _with_states(self, found: Finding | None) -> Finding | None:
        if found is None:
            return None
        ranks = [state.to_dict() for state in self._states]
        return replace(found, details={**found.details, "ranks": ranks})

    def _no_progress(self, quiet: float) -> Finding | None:
        """Nobody has said anything for long, and why is not known."""
        ended = all(state.finished or state.gone for state in self._states)
        if self._timeout is None or quiet < self._timeout or ended:
            return None
        return no_progress_found(self._states, quiet)
