"""Listens to the ranks of one run and proves what is wrong with it, if anything.

    watch = Watch(4, timeout=60.0)
    watch.hear(2, frame)                        # each frame, as it comes
    watch.ended(2, status)                      # a process is gone
    finding = watch.look(now, threads)          # every 20 ms: None while all is well
    finding = watch.final()                     # all ranks are over
    trace = watch.trace                         # every call, for pictures and for checks

It knows nothing of processes and pipes: plain frames come in, findings go out. Verdicts have this
order: the earliest real exception, a death, a mismatch, a proven deadlock, no progress. Their texts
are in wording.py.
"""

import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from multigpu.ranks import wording
from multigpu.ranks.calls import REDUCTIONS, ROOTED, Call, CollectiveMatch, Matching
from multigpu.ranks.errors import Finding, Kind, their_frames
from multigpu.ranks.state import PEER_DIED, RankState, SystemThreads
from multigpu.ranks.trace import Trace

GATHER = 0.1  # seconds after the first failure, for those of other ranks to come in
VOTE = 0.25  # seconds for the other members to show whom they agree with
CAUSE = 1.0  # seconds for the cause of a follow-up error to show itself
QUIET = 0.5  # seconds without a word before a deadlock is looked for
QUIET_PARTLY = 1.0  # where a backend may still be passing data on between some of the ranks

SIZELESS = ("barrier", "new_group", "all_to_all")  # nothing to compare; parts may differ in size

# What calls that belong together must have in common, and for which calls it matters.
COMPARED: dict[str, Callable[[Call], bool]] = {
    "op": lambda call: True,
    "wanted": lambda call: True,
    "root": lambda call: call.op in ROOTED,
    "reduce": lambda call: call.op in REDUCTIONS,
    "dtype": lambda call: call.op not in ("barrier", "new_group"),
    "numel": lambda call: call.op not in SIZELESS,
}


class Watch:
    """One run: the reports of its ranks, and what follows from them."""

    def __init__(self, world_size: int, *, timeout: float | None) -> None:
        self._states = [RankState(rank) for rank in range(world_size)]
        self._matching = Matching()
        self._disputed: CollectiveMatch | None = None  # the first whose calls differ
        self._misfit: tuple[Call, Call] | None = None  # the first send that does not fit
        self._seen: float | None = None  # when the first of these was seen
        self._timeout = timeout
        self._progressed = True  # something was heard since the last look
        self._last = 0.0  # when something was heard last, by the clock of `look`
        self._stuck = False  # a deadlock was found at the last look
        self._failed: float | None = None  # when the first failure was seen
        self._failures: list[int] = []  # ranks that raised or died, in the order of the news

    def hear(self, rank: int, frame: Mapping[str, Any]) -> None:
        self._progressed = True
        call = self._states[rank].hear(frame)
        if frame["phase"] in ("raised", "left"):
            self._failures.append(rank)
        if call is not None and frame["phase"] == "call":
            self._matching.add(call)
            self._compare(call)
        elif call is not None and call.is_over and not (self._disputed or self._misfit):
            for each in self._matching.forget(call):
                del self._states[each.rank].calls[each.id]

    @property
    def trace(self) -> Trace:
        """Every call and span that the ranks have reported."""
        calls = [call for state in self._states for call in state.record.values()]
        spans = [span for state in self._states for span in state.spans]
        return Trace(calls, spans, world_size=len(self._states))

    def note_progress(self) -> None:
        """A rank has sent something, such as a print."""
        self._progressed = True

    def ended(self, rank: int, status: int) -> None:
        """The process of a rank is gone: its exit code, negative for a signal."""
        self._progressed = True
        self._states[rank].status = status
        self._failures.append(rank)

    def look(self, now: float, threads: SystemThreads) -> Finding | None:
        """What is wrong at this moment (`now` is `time.monotonic()`); None if nothing is."""
        if self._progressed:
            self._progressed, self._last = False, now
        quiet = now - self._last
        found = self._failure(now, threads) or self._mismatch(now)
        if found is None:
            # Two looks in a row have to find it: what ranks say during the first is heard.
            before, self._stuck = self._stuck, self._deadlocked(threads, quiet)
            if before and self._stuck:
                found = self._deadlock()
        return self._with_uncaught(found or self._no_progress(quiet))

    def final(self) -> Finding | None:
        """What is wrong with a run whose ranks are all over."""
        return self._with_uncaught(
            self._any_failure() or self._difference() or self._fewer() or self._unmatched()
        )

    def _finding(
        self, kind: Kind, ranks: Iterable[int], message: str, usually: str, **details: Any
    ) -> Finding:
        details["ranks"] = [state.to_dict() for state in self._states]
        return Finding(kind, tuple(sorted(ranks)), message, usually, details)

    # Ranks that raised or died: which of them is the cause, and which only follow.

    def _failure(self, now: float, threads: SystemThreads) -> Finding | None:
        """An exception or a death, after a moment in which others can add theirs."""
        failed = [state for state in self._states if state.raised or state.died]
        if not failed:
            return None
        if self._failed is None:
            self._failed = now
        real = any(state.died or not state.is_follow_up() for state in failed)
        if not all(state.over for state in self._states):
            others = [s.rank for s in self._states if not (s.over or s.died)]
            to_come = any(threads.dying(rank) for rank in others)
            if to_come or now - self._failed < (GATHER if real else CAUSE):
                return None
        if all(state.failed_inside() for state in failed):
            return self._difference() or self._any_failure()
        return self._any_failure()

    def _any_failure(self) -> Finding | None:
        found, dead = self._exception(), self._exit()
        if found and dead:
            return min(found, dead, key=lambda one: self._failures.index(one.ranks[0]))
        return found or dead or self._exception(follow_ups=True)

    def _exception(self, *, follow_ups: bool = False) -> Finding | None:
        """The earliest exception, and the ranks that raised the same at the same place.

        With `follow_ups` errors that look like another rank's death count, too.
        """
        raised = {
            state.rank: state.raised
            for state in self._states
            if state.raised and (follow_ups or not state.is_follow_up())
        }
        if not raised:
            return None
        first = min(raised, key=lambda rank: (raised[rank]["time"], rank))
        same = {rank: (e["type"], their_frames(e)[-1:]) for rank, e in raised.items()}
        ranks = [rank for rank in raised if same[rank] == same[first]]
        kind: Kind = "exit" if "SystemExit" in raised[first].get("types", ()) else "exception"
        message, usually = wording.raised(raised[first], ranks)
        errors = {str(rank): dict(error) for rank, error in raised.items()}
        return self._finding(kind, ranks, message, usually, raised=errors)

    def _exit(self) -> Finding | None:
        """The rank whose process ended first, without a report or through `os._exit`."""
        dead = [state for state in self._states if state.died]
        if not dead:
            return None

        def suspicion(state: RankState) -> tuple[bool, bool, float, int]:
            """First who exited by itself, then who was killed, last who aborted in gloo."""
            aborted = state.status == -signal.SIGABRT and state.was_inside()
            left = state.left["time"] if state.left else 0.0
            return aborted, state.left is None, left, state.rank

        first = min(dead, key=suspicion)
        # Others may have said that they leave with the same status, and be there still.
        alike = [
            state.rank
            for state in dead
            if state.left and first.left and state.left["status"] == first.left["status"]
        ]
        message, usually = wording.ended(first, alike or [first.rank])
        left = dict(first.left) if first.left else None
        details = {"status": first.status, "left": left}
        return self._finding("exit", alike or [first.rank], message, usually, exit=details)

    def _with_uncaught(self, found: Finding | None) -> Finding | None:
        """The same finding with the earliest uncaught exception of a thread.

        It comes before all other findings, because later ones may follow from it.
        """
        uncaught = [
            (error["time"], state.rank, error)
            for state in self._states
            for error in state.uncaught
            if not PEER_DIED.search(error.get("text", ""))
        ]
        if found is None or not uncaught:
            return found
        when, rank, error = min(uncaught, key=lambda one: one[:2])
        raised = [s.raised["time"] for s in self._states if s.raised and s.rank in found.ranks]
        if raised and min(raised) < when:
            return found
        hides = found.kind in ("deadlock", "no_progress")
        return replace(
            found,
            message=f"{wording.raised_in_a_thread(rank, error)}\n{found.message}",
            usually=wording.UNCAUGHT if hides else found.usually,
        )

    # Calls that belong together and do not fit.

    def _compare(self, call: Call) -> None:
        """Look whether a call that has just begun fits those that it belongs to."""
        if self._disputed or self._misfit:
            return
        if call.nth is not None:
            match = self._matching.match(call)
            if difference(next(iter(match.calls.values())), call):
                self._disputed = match
        else:
            pair = self._matching.queue(call).pair(call)
            if pair and pair[0].bytes != pair[1].bytes:
                self._misfit = pair

    def _mismatch(self, now: float) -> Finding | None:
        """Calls that do not fit, once all members had time to show which call they make."""
        if not (self._disputed or self._misfit):
            return None
        if self._seen is None:
            self._seen = now
        whole = self._disputed is None or not self._disputed.missing
        return self._difference() if whole or now - self._seen > VOTE else None

    def _difference(self) -> Finding | None:
        if self._misfit:
            send, receive = self._misfit
            return self._finding(
                "mismatch",
                {send.rank, receive.rank},
                *wording.message_differs(send, receive),
                difference="bytes",
            )
        if not self._disputed:
            return None
        camps: dict[tuple[Any, ...], list[Call]] = defaultdict(list)
        for _, call in sorted(self._disputed.calls.items()):
            compared = [getattr(call, name) if COMPARED[name](call) else None for name in COMPARED]
            camps[tuple(compared)].append(call)
        sides = sorted(camps.values(), key=len, reverse=True)
        name = difference(sides[0][0], sides[1][0])
        assert name is not None, "the calls fit"
        return self._finding(
            "mismatch",
            minority([call.rank for call in side] for side in sides),
            *wording.collectives_differ(name, sides, self._states),
            difference=name,
        )

    def _fewer(self) -> Finding | None:
        """A member made fewer of a group's collectives, and the run is over.

        No rank was blocked: the calls were never waited for, or the backend did not need the
        others. Calls that failed do not count, because the program knows of them.
        """
        for match in self._matching.matches.values():
            if not match.missing or all(call.failed for call in match.calls.values()):
                continue
            camps: dict[int, list[int]] = defaultdict(list)  # ranks by their number of collectives
            for rank in match.members:
                camps[self._states[rank].collectives(match.group)].append(rank)
            first = self._matching.matches[match.group, min(camps)]  # that some did not make
            return self._finding(
                "mismatch",
                minority(camps.values()),
                *wording.fewer_collectives(camps, first.calls[min(first.calls)], len(self._states)),
                difference="count",
            )
        return None

    def _unmatched(self) -> Finding | None:
        """A message of a finished run that has no other side."""
        queues = self._matching.queues.values()
        alone = [call for queue in queues for call in queue.unmatched() if not call.failed]
        if not alone:
            return None
        call = min(alone, key=lambda each: (each.time, each.rank))
        ranks = {call.rank} if call.peer is None else {call.rank, call.peer}
        return self._finding(
            "mismatch", ranks, *wording.unmatched_message(call), difference="message"
        )

    # Ranks that wait forever.

    def _deadlocked(self, threads: SystemThreads, quiet: float) -> bool:
        """Whether it is certain that nothing more will happen.

        That is so when every rank is over or blocked in all its threads, and no call that a thread
        waits for can end: a collective that not all members have begun, or a message whose other
        side has not been called. A wait whose time limit comes before the run's `timeout` can end.
        """
        matching, states = self._matching, self._states
        given_up = inf if self._timeout is None else self._last + self._timeout - QUIET
        if quiet < QUIET or any(not s.gone and s.waits_until() < given_up for s in states):
            return False
        waits = [call for state in states for call in state.waiting_in()]
        if not waits or any(matching.may_complete(call) for call in waits):
            return False
        under_way = [
            call
            for state in states
            for call in ([] if state.gone else state.calls.values())
            if call.is_open and call.is_async and call.nth is not None and call.completed is None
        ]
        if any(matching.may_complete(call) for call in under_way):
            return False  # something may be called when it is over
        matches = [matching.match(call) for call in waits if call.nth is not None]
        if quiet < QUIET_PARTLY and any(match.may_advance() for match in matches):
            return False
        can_act = [state.can_act(threads) for state in states]  # of each: the next look compares
        return not any(can_act)

    def _deadlock(self) -> Finding:
        """The finding about ranks that wait for each other, or for one that is over."""
        waits = [call for state in self._states for call in state.waiting_in()]
        over = {state.rank for state in self._states if state.over}
        targets = {call: set(self._matching.waits_for(call, over)) for call in waits}
        edges: dict[int, set[int]] = {state.rank: set() for state in self._states}
        for call, others in targets.items():
            edges[call.rank] |= others
        ends = _ends_of_waiting(edges)
        core = [c for c in waits if c.rank in ends or over & ends & targets[c]]
        absent = {rank for c in core if c.nth is not None for rank in targets[c]} & ends
        missing = [self._states[rank] for rank in sorted(absent)]
        return self._finding(
            "deadlock",
            self._blamed(core, waits, targets, ends=ends, over=over),
            wording.deadlock(core, targets, over & ends, self._states),
            wording.usually_deadlock(core, missing),
        )

    def _blamed(
        self,
        core: Iterable[Call],
        waits: Sequence[Call],
        targets: Mapping[Call, set[int]],
        *,
        ends: set[int],
        over: set[int],
    ) -> set[int]:
        """The ranks at fault:

        for a collective the minority, whether it has begun the call or not; for a message both
        sides. A missing message looks the same whether one side skipped it or the other made one
        too many.
        """
        blamed: set[int] = set()
        for call in core:
            others = targets[call]
            if call.nth is not None:
                there = {c.rank for c in waits if c.nth is not None and c.group == call.group}
                there |= self._matching.match(call).calls.keys()
                blamed |= set(minority([sorted(there), sorted(others & ends)]))
            elif call.peer is None:  # any other may be the one that did not send
                blamed |= {call.rank} | (set(call.members) & (ends | over))
            else:
                blamed |= {call.rank} | (others & ends)
        return blamed

    def _no_progress(self, quiet: float) -> Finding | None:
        """No rank has reported anything for `timeout`; the reason is unknown."""
        states = self._states
        not_ended = [state for state in states if not (state.finished or state.gone)]
        if self._timeout is None or quiet < self._timeout or not not_ended:
            return None
        unfinished = [state for state in states if not state.over]
        busy = [state for state in unfinished if not state.waiting_in()]
        ranks = [state.rank for state in busy or unfinished or not_ended]
        usually = wording.BUSY if busy else wording.ALL_WAIT if unfinished else wording.LINGERS
        message = wording.no_progress(ranks, self._timeout, states, returned=not unfinished)
        return self._finding("no_progress", ranks, message, usually)


def difference(one: Call, other: Call) -> str | None:
    """The first thing in which two calls of one match differ; None if they fit."""
    for name, matters in COMPARED.items():
        if matters(one) and getattr(one, name) != getattr(other, name):
            return name
    return None


def minority(camps: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The ranks that are not in the largest camp; all of them if there is no single largest."""
    found = sorted(camps, key=len, reverse=True)
    if len(found) > 1 and len(found[0]) > len(found[1]):
        found = found[1:]
    return tuple(sorted(rank for camp in found for rank in camp))


def _ends_of_waiting(edges: Mapping[int, set[int]]) -> set[int]:
    """The ranks at the end of the chains: those that are over, and those that wait in a ring."""
    reached: dict[int, set[int]] = {}
    for rank, others in edges.items():
        found, todo = set(), list(others)
        while todo:
            other = todo.pop()
            if other not in found:
                found.add(other)
                todo += edges[other]
        reached[rank] = found
    waited_for = {rank for others in edges.values() for rank in others}
    return {
        rank
        for rank in waited_for
        if all(rank in reached[other] or other == rank for other in reached[rank])
    }
