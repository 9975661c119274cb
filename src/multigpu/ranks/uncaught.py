"""Exceptions that ended a thread of a rank: the rank itself goes on, and the others may wait."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from multigpu.ranks.failures import FOLLOW_UP, their_frames
from multigpu.ranks.findings import Finding
from multigpu.ranks.states import RankState
from multigpu.ranks.wording import place

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
