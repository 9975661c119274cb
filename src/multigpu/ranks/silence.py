"""Ranks that say nothing for longer than the caller wants to wait, and no proof of a deadlock."""

from collections.abc import Sequence

from multigpu.ranks.describing import what_each_does
from multigpu.ranks.findings import Finding
from multigpu.ranks.states import RankState
from multigpu.ranks.wording import ranks_in_words

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
    what = "said nothing" if unfinished else "returned, but did not end"
    return Finding(
        "no_progress",
        ranks,
        "\n".join([f"{ranks_in_words(ranks)} {what} for {quiet:.0f} s.", *what_each_does(states)]),
        BUSY if busy else ALL_WAIT if unfinished else LINGERS,
        {"ranks": [state.to_dict() for state in states]},
    )
