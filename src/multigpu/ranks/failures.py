"""Ranks that raised or died: which of them is the cause, and which only follow.

When a rank dies, its neighbours fail inside their calls: "Connection closed by peer". These are
follow-up errors, and the last thing a reader needs. A rank's error counts as one if it looks like
that and came inside a call, or after a call of the rank that had failed so.
"""

import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from multigpu.ranks.findings import Finding
from multigpu.ranks.states import RankState
from multigpu.ranks.wording import place, ranks_in_words

FOLLOW_UP = re.compile(
    r"closed by peer|connection reset|connection refused|broken pipe|unbound ?buffer"
    r"|timed out|wait timeout|application timeout|socket (closed|timeout)|recv.* 0 bytes"
    r"|remote process|nccl.*(abort|remote)|aborted|transport/tcp",
    re.IGNORECASE,
)
NOT_THEIRS = (
    "site-packages",
    "dist-packages",
    "/multigpu/ranks/",
    "/multigpu/checking/",
    "<frozen",
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


def their_frames(raised: Mapping[str, Any]) -> list[list[Any]]:
    """`[file, line, function]` of the reader's own code, the outermost first."""
    frames = [list(frame) for frame in raised.get("frames", [])]
    return [frame for frame in frames if not any(part in frame[0] for part in NOT_THEIRS)]


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
