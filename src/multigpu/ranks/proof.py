"""Listens to the ranks of one run, and proves what is wrong with it, if something is.

    watch = Watch(4, timeout=60.0)
    watch.hear(2, frame)                        # each frame, as it comes
    watch.ended(2, status)                      # a process is gone
    finding = watch.look(now, threads)          # every 20 ms: None while all is well
    finding = watch.final()                     # all ranks are over

It knows nothing of processes and pipes: plain frames come in, findings go out.  Verdicts come in
this order: the earliest real exception, a death, a mismatch, a proven deadlock, no progress.

When a rank dies, its neighbours fail inside their calls: "Connection closed by peer". These are
follow-up errors, and the last thing a reader needs. A rank's error counts as one if it looks like
that and came inside a call, or after a call of the rank that had failed so.

Calls that belong together do not fit if they differ in operation, root, reduction, dtype or number
of elements, not in shapes or lines of code. Blamed is the minority; where it is half and half, all.

A deadlock is proven when every rank is over or blocked in all its threads, and no call that a
thread waits for can end: a collective that not all members have begun, a message whose other side
has not been called.
"""

import re
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from multigpu.ranks import wording
from multigpu.ranks.errors import Finding, listed, ordinal, place, ranks_in_words, their_frames
from multigpu.ranks.process_tree import Threads
from multigpu.ranks.state import CollectiveMatch, Key, Matching, RankState, open_calls
from multigpu.ranks.trace import REDUCTIONS, ROOTED, Call, Trace, TraceBuilder
from multigpu.ranks.wording import amount, described, usually_deadlock, what_each_does

FOLLOW_UP = re.compile(
    r"closed by peer|connection reset|connection refused|broken pipe|unbound ?buffer"
    r"|timed out|wait timeout|application timeout|socket (closed|timeout)|recv.* 0 bytes"
    r"|remote process|nccl.*(abort|remote)|aborted|transport/tcp",
    re.IGNORECASE,
)


def is_follow_up(state: RankState) -> bool:
    """Whether what this rank raised only follows from what happened to another rank."""
    raised = state.raised
    if raised is None:
        return False
    if raised.get("inside") is not None and FOLLOW_UP.search(raised.get("text", "")):
        return True
    return any(call.failed and FOLLOW_UP.search(call.failed) for call in state.calls.values())


def died(state: RankState) -> bool:
    """Whether the rank ended without having returned or raised."""
    return (state.gone or state.left is not None) and not state.returned and state.raised is None


def asked_to_exit(state: RankState) -> bool:
    """Whether the rank raised SystemExit."""
    return state.raised is not None and "SystemExit" in state.raised.get("types", [])


def exception_found(states: Sequence[RankState], *, follow_ups: bool = False) -> Finding | None:
    """The earliest exception, and the ranks that raised the same at the same place.

    With `follow_ups` errors that look like another rank's death count, too.
    """
    raised = [s for s in states if s.raised and (follow_ups or not is_follow_up(s))]
    if not raised:
        return None
    first = min(raised, key=lambda state: (_raised(state).get("time", 0.0), state.rank))
    same = [s for s in raised if _signature(_raised(s)) == _signature(_raised(first))]
    ranks = tuple(state.rank for state in same)
    details = {
        "ranks": [state.to_dict() for state in states],
        "raised": {str(state.rank): dict(_raised(state)) for state in raised},
    }
    if asked_to_exit(first):
        return Finding("exit", ranks, _asked_to_exit(first, ranks), _EXITS, details)
    return Finding("exception", ranks, _exception(_raised(first), ranks), "", details)


def exit_found(states: Sequence[RankState]) -> Finding | None:
    """The rank whose process ended first, without a word or through `os._exit`."""
    dead = [state for state in states if died(state)]
    if not dead:
        return None
    first = min(dead, key=_suspicion)
    ranks = tuple(state.rank for state in dead if state is first or _left_alike(state, first))
    details = {
        "ranks": [state.to_dict() for state in states],
        "exit": {"status": first.status, "left": dict(first.left) if first.left else None},
    }
    message, usually = _ended(first, ranks)
    return Finding("exit", ranks, message, usually, details)


def _left_alike(one: RankState, other: RankState) -> bool:
    """Whether both said that they leave with the same status; the processes may be there still."""
    if one.left is None or other.left is None:
        return False
    return bool(one.left["status"] == other.left["status"])


def _suspicion(state: RankState) -> tuple[bool, bool, float, int]:
    """The cause comes first: who left by itself, then who was killed, last who aborted in gloo."""
    aborted = state.status == -signal.SIGABRT and was_inside(state)
    said = state.left is not None
    return aborted, not said, state.left["time"] if state.left else 0.0, state.rank


def was_inside(state: RankState) -> bool:
    """Whether the rank waited for a call when it was heard of last.

    Where the process aborted, a call that nobody waited for yet is enough: the backend's own thread
    works on it, and gloo's aborts when sizes do not fit.
    """
    aborted = state.status == -signal.SIGABRT
    return any(
        call.is_open and (aborted or call.waited is not None) for call in state.calls.values()
    )


def failed_inside(state: RankState) -> bool:
    """Whether a rank failed in the middle of a call: it may be the call's own failure."""
    if state.raised is not None:
        return state.raised.get("inside") is not None or is_follow_up(state)
    return state.status is not None and state.status < 0 and was_inside(state)


def _raised(state: RankState) -> Mapping[str, Any]:
    assert state.raised is not None
    return state.raised


def _signature(raised: Mapping[str, Any]) -> tuple[Any, ...]:
    frames = their_frames(raised)
    return raised.get("type"), tuple(frames[-1]) if frames else None


def _exception(raised: Mapping[str, Any], ranks: Sequence[int]) -> str:
    what = ": ".join(filter(None, [raised.get("type", "an exception"), raised.get("text", "")]))
    lines = [f"{ranks_in_words(ranks)}: {what}", *raised.get("notes", [])]
    if raised.get("traceback"):
        return "\n".join([*lines, raised["traceback"].rstrip()])
    for number, (file, line, function) in enumerate(their_frames(raised)[::-1][:3]):
        lines.append(f"{'where:' if number == 0 else '      '} {place(file, line)} in {function}")
    return "\n".join(lines)


_EXITS = "a rank that leaves early leaves the others alone in their next collective."


def _asked_to_exit(state: RankState, ranks: Sequence[int]) -> str:
    raised = _raised(state)
    frames = their_frames(raised)
    where = f", {place(frames[-1][0], frames[-1][1])}" if frames else ""
    return f"{ranks_in_words(ranks)} called sys.exit({raised.get('status', '')}){where}."


def _ended(state: RankState, ranks: Sequence[int]) -> tuple[str, str]:
    who = ranks_in_words(ranks)
    last = state.last_call()
    after = ""
    if last is not None:
        inside = "in" if last.is_open else "after"
        after = f", {inside} its {last.via} at {last.place}"
    if state.left is not None:
        where = state.left.get("where") or []
        at = f", {place(where[0], where[1])}" if where else ""
        return f"{who} called os._exit({state.left.get('status')}){at}.", _EXITS
    if state.status is not None and state.status < 0:
        name = _signal_name(-state.status)
        usually = _SIGNALS.get(name, "")
        return f"{who} was killed by {name}{after}.", usually
    return f"{who} ended with status {state.status} without returning{after}.", _EXITS


_SIGNALS = {
    "SIGKILL": "the machine ran out of memory and the system chose this process; or somebody "
    "killed it by hand.",
    "SIGSEGV": "compiled code read memory that is not its own: an extension, or a broken install.",
    "SIGBUS": "/dev/shm or the disk is full, and compiled code wrote to it.",
    "SIGABRT": "compiled code gave up; its last words are in the rank's output.",
    "SIGTERM": "somebody, or a scheduler, asked the process to end.",
}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


USUALLY = (
    "an exception ends its thread only: the rank goes on without what that thread had to do. "
    "Mend the exception first."
)


def with_uncaught(found: Finding | None, states: Sequence[RankState]) -> Finding | None:
    """The same finding with the earliest exception that nobody caught in a thread, if it is one.

    It comes before everything else: what was seen later may follow from it.
    """
    uncaught = [(state, error) for state in states for error in state.uncaught]
    real = [(state, error) for state, error in uncaught if not _follows(state, error)]
    if found is None or not real:
        return found
    state, error = min(real, key=lambda one: one[1]["time"])
    raised = [s.raised.get("time", 0.0) for s in states if s.raised and s.rank in found.ranks]
    if raised and min(raised) < error["time"]:
        return found
    return replace(
        found,
        message=f"{_said(state.rank, error)}\n{found.message}",
        usually=USUALLY if found.kind in ("deadlock", "no_progress") else found.usually,
        details={**found.details, "uncaught": {"rank": state.rank, **error}},
    )


def _follows(state: RankState, error: Mapping[str, Any]) -> bool:
    """Whether it only tells of a call that failed because of another rank."""
    failed = [call.failed for call in state.calls.values() if call.failed]
    text = error.get("text", "")
    return bool(FOLLOW_UP.search(text)) and any(text.startswith(each) for each in failed)


def _said(rank: int, error: Mapping[str, Any]) -> str:
    what = ": ".join(filter(None, [error["type"], error.get("text", "")]))
    frames = their_frames(error)
    where = f", {place(*frames[-1])}" if frames else ""
    return f"in a thread of rank {rank}: {what}{where}"


BUSY = (
    "an endless loop, a lock that nobody opens, or work that needs more than `timeout` seconds "
    "without a collective."
)
ALL_WAIT = (
    "a thread that sleeps or polls hides that the others wait for ever; or all have begun a call "
    "that the backend cannot end, because it is very big or the tensors do not fit."
)
LINGERS = (
    "a thread, a process of its own or an atexit function that goes on after the function has "
    "returned. Let it end before, or start the thread with `daemon=True`."
)


def no_progress_found(states: Sequence[RankState], quiet: float) -> Finding:
    """The finding about a silence of `quiet` seconds; blamed are the ranks that do not wait."""
    unfinished = [state for state in states if not state.over]
    busy = [state for state in unfinished if not state.waiting_in()]
    not_ended = [state for state in states if not (state.finished or state.gone)]
    ranks = tuple(state.rank for state in busy or unfinished or not_ended)
    seconds = f"{quiet:.1f}".removesuffix(".0")
    what = "said nothing" if unfinished else "returned, but did not end"
    return Finding(
        "no_progress",
        ranks,
        "\n".join([f"{ranks_in_words(ranks)} {what} for {seconds} s.", *what_each_does(states)]),
        BUSY if busy else ALL_WAIT if unfinished else LINGERS,
        {"ranks": [state.to_dict() for state in states]},
    )


SIZELESS = ("barrier", "new_group", "all_to_all")  # nothing to compare; parts may differ in size


@dataclass(frozen=True)
class Difference:
    """One thing in which calls are compared."""

    name: str
    of: Callable[[Call], Any]
    matters: Callable[[Call], bool] = lambda call: True


DIFFERENCES = (
    Difference("members", lambda call: call.members),
    Difference("op", lambda call: call.op),
    Difference("wanted", lambda call: call.wanted),
    Difference("root", lambda call: call.root, lambda call: call.op in ROOTED),
    Difference("reduce", lambda call: call.reduce, lambda call: call.op in REDUCTIONS),
    Difference(
        "dtype", lambda call: call.dtype, lambda call: call.op not in ("barrier", "new_group")
    ),
    Difference("numel", lambda call: call.numel, lambda call: call.op not in SIZELESS),
)


def difference(one: Call, other: Call) -> str | None:
    """The first thing in which two calls of one match differ; None if they fit."""
    for each in DIFFERENCES:
        if each.matters(one) and each.of(one) != each.of(other):
            return each.name
    return None


def minority(camps: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The ranks that are not in the largest camp; all of them if there is no single largest."""
    found = sorted(camps, key=len, reverse=True)
    if len(found) > 1 and len(found[0]) > len(found[1]):
        found = found[1:]
    return tuple(sorted(rank for camp in found for rank in camp))


def collectives_differ(calls: Sequence[Call], world_size: int) -> Finding:
    """The finding about the calls of one match, of which two or more differ."""
    camps: dict[tuple[Any, ...], list[Call]] = defaultdict(list)
    for call in calls:
        camps[tuple(d.of(call) if d.matters(call) else None for d in DIFFERENCES)].append(call)
    sides = sorted(camps.values(), key=len, reverse=True)
    name = difference(sides[0][0], sides[1][0])
    assert name is not None, "the calls fit"
    first = calls[0]
    assert first.nth is not None
    group = "" if name == "members" else first.in_group(world_size)
    lines = [f"the {ordinal(first.nth + 1)} collective{group} is not the same on all ranks:"]
    for same in (same for side in sides for same in _by_place(side)):
        who = ranks_in_words(call.rank for call in same)
        group = f" in a group of {ranks_in_words(same[0].members)}" if name == "members" else ""
        lines.append(f"  {who}: {described(same[0])}{group}, {same[0].place}")
    return Finding(
        "mismatch",
        minority([call.rank for call in side] for side in sides),
        "\n".join(lines),
        wording.usually_differ(name, sides),
        {"difference": name, "group": first.group, "nth": first.nth},
    )


def message_differs(send: Call, receive: Call) -> Finding:
    """The finding about a message that does not fit its receiver's buffer."""
    return Finding(
        "mismatch",
        tuple(sorted({send.rank, receive.rank})),
        f"rank {send.rank} sends {amount(send)} to rank {receive.rank}, {send.place}, "
        f"but rank {receive.rank} receives {amount(receive)}, {receive.place}.",
        wording.usually_message(send, receive),
        {"difference": "bytes", "group": send.group, "nth": None},
    )


def _by_place(calls: Sequence[Call]) -> list[list[Call]]:
    """Calls of one side, together where they come from the same line."""
    found: dict[tuple[str, int, str], list[Call]] = defaultdict(list)
    for call in calls:
        found[call.file, call.line, described(call)].append(call)
    return list(found.values())


def fewer_collectives(calls: Iterable[Call], world_size: int) -> Finding | None:
    """The finding about a run that is over, in which a member made fewer of a group's collectives.

    Nobody was blocked: what was begun was never waited for, or the backend did without.
    """
    counts: dict[str, dict[int, list[Call]]] = {}
    for call in calls:
        if call.nth is not None and not call.failed:  # the program knows of one that failed
            made = counts.setdefault(call.group, {rank: [] for rank in call.members})
            made.setdefault(call.rank, []).append(call)
    for made in counts.values():
        if len({len(each) for each in made.values()}) > 1:
            return _fewer(made, world_size)
    return None


def _fewer(made: dict[int, list[Call]], world_size: int) -> Finding:
    camps: dict[int, list[int]] = defaultdict(list)
    for rank, each in made.items():
        camps[len(each)].append(rank)
    most = max(camps)
    last = made[camps[most][0]][min(camps)]  # the first one that some did not make
    said = [f"{ranks_in_words(ranks)} made {count}" for count, ranks in sorted(camps.items())]
    group = last.in_group(world_size)
    return Finding(
        "mismatch",
        minority(camps.values()),
        f"the ranks did not make equally many collectives{group}: {listed(said)}.\n"
        f"  only {ranks_in_words(camps[most])}: {described(last)}, {last.place}",
        wording.usually_fewer(last, camps[most]),
        {"difference": "count", "group": last.group, "nth": last.nth},
    )


def never_received(unmatched: Sequence[Call]) -> Finding:
    """The finding about messages of a run that is over that found no other side."""
    call = min(unmatched, key=lambda each: (each.time, each.rank))
    other = f"rank {call.peer}" if call.peer is not None else "any rank"
    if call.op == "send":
        said = f"rank {call.rank} sent {amount(call)} to {other} that {other} never received"
    else:
        said = f"rank {call.rank} began to receive {amount(call)} from {other}, which sent nothing"
    ranks = {call.rank} if call.peer is None else {call.rank, call.peer}
    return Finding(
        "mismatch",
        tuple(sorted(ranks)),
        f"{said}: {call.via}, {call.place}.",
        "the other side of the message was left out, or it is another rank's, or has another tag.",
        {"difference": "message", "group": call.group, "nth": None},
    )


Targets = dict[Key, set[int]]  # the ranks that a call waits for

QUIET = 0.5  # seconds without a word before a deadlock is looked for
QUIET_PARTLY = 1.0  # where a backend may still be passing data on between some of the ranks


def deadlocked(
    states: Sequence[RankState], matching: Matching, threads: Threads, *, quiet: float
) -> bool:
    """Whether it is certain that nothing will happen any more."""
    if quiet < QUIET or any(state.has_a_limit for state in states if not state.gone):
        return False
    waits = [call for state in states for call in state.waiting_in()]
    if not waits or any(matching.may_complete(call) for call in waits):
        return False
    under_way = (call for call in open_calls(states) if call.nth is not None and call.is_async)
    if any(call.completed is None and matching.may_complete(call) for call in under_way):
        return False  # something may be called when it is over
    partly = [call for call in waits if call.nth is not None]
    if quiet < QUIET_PARTLY and any(
        matching.match(call).may_advance(matching.calls) for call in partly
    ):
        return False
    can_act = [state.can_act(threads) for state in states]  # of each: the next look compares
    return not any(can_act)


def deadlock_found(states: Sequence[RankState], matching: Matching) -> Finding:
    """The finding about ranks that wait for each other, or for one that is over."""
    waits = [call for state in states for call in state.waiting_in()]
    over = {state.rank for state in states if state.over}
    targets = {(call.rank, call.id): set(matching.waits_for(call, over)) for call in waits}
    edges: dict[int, set[int]] = {state.rank: set() for state in states}
    for (rank, _), others in targets.items():
        edges[rank] |= others
    ends = _ends_of_waiting(edges)
    core = [c for c in waits if c.rank in ends or over & ends & targets[c.rank, c.id]]
    blamed = _blamed(core, waits, matching, targets, ends=ends, over=over)
    absent = {r for c in core if c.nth is not None for r in targets[c.rank, c.id]}
    missing = [state for state in states if state.rank in absent & ends]
    return Finding(
        "deadlock",
        tuple(sorted(blamed)),
        "\n".join([_headline(core, targets, over & ends), *what_each_does(states, core)]),
        usually_deadlock(core, waits, missing=missing, states=states),
        {
            "ranks": [state.to_dict() for state in states],
            "waits_for": {str(rank): sorted(others) for rank, others in edges.items()},
        },
    )


def _ends_of_waiting(edges: dict[int, set[int]]) -> set[int]:
    """The ranks at the end of the chains: those that are over, and those that wait in a ring."""
    reached = {rank: _reachable(rank, edges) for rank in edges}
    waited_for = {rank for others in edges.values() for rank in others}
    return {
        rank
        for rank in waited_for
        if all(rank in reached[other] or other == rank for other in reached[rank])
    }


def _reachable(rank: int, edges: dict[int, set[int]]) -> set[int]:
    found: set[int] = set()
    todo = list(edges[rank])
    while todo:
        other = todo.pop()
        if other not in found:
            found.add(other)
            todo += edges[other]
    return found


def _blamed(
    core: Iterable[Call],
    waits: Sequence[Call],
    matching: Matching,
    targets: Targets,
    *,
    ends: set[int],
    over: set[int],
) -> set[int]:
    """Of a collective the minority, there (or still before it) or not; of a message both sides.

    A message that is missing looks the same whether one side left it out or the other made one
    too many.
    """
    blamed: set[int] = set()
    for call in core:
        others = targets[call.rank, call.id]
        if call.nth is not None:
            absent = others & ends
            there = {c.rank for c in waits if c.nth is not None and c.group == call.group}
            there |= matching.match(call).keys.keys()
            blamed |= set(minority([sorted(there), sorted(absent)]))
        elif call.peer is None:  # any other may be the one that did not send
            blamed |= {call.rank} | (set(call.members) & (ends | over))
        else:
            blamed |= {call.rank} | (others & ends)
    return blamed


def _headline(core: Sequence[Call], targets: Targets, over: set[int]) -> str:
    if not over:
        ring = {call.rank for call in core}
        wait = "wait for each other" if len(ring) > 1 else "waits for itself"
        return f"{ranks_in_words(ring)} {wait} for ever:"
    waiting = {call.rank for call in core if over & targets[call.rank, call.id]}
    has, them = ("has", "it") if len(over) == 1 else ("have", "them")
    waits = "waits" if len(waiting) == 1 else "wait"
    who = f"{ranks_in_words(over)} {has} returned"
    return f"{who}, {ranks_in_words(waiting)} {waits} for {them} for ever:"


GATHER = 0.1  # seconds after the first failure, for those of other ranks to come in
VOTE = 0.25  # seconds for the other members to show whom they agree with
CAUSE = 1.0  # seconds for the cause of a follow-up error to show itself


class Watch:
    """One run: what its ranks have said, and what follows from it."""

    def __init__(self, world_size: int, *, timeout: float | None) -> None:
        self._states = [RankState(rank) for rank in range(world_size)]
        self._builder = TraceBuilder(world_size)
        self._matching = Matching(self._builder.calls)
        self._disputed: CollectiveMatch | None = None  # the first whose calls differ
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
            match = self._matching.match(call)
            if difference(calls[next(iter(match.keys.values()))], call):
                self._disputed = match
        elif pair := self._matching.queue(call).pair(call):
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
        boxes = self._matching.queues.values()
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
