"""Mistakes with messages that are under way, as the trace of a run shows them.

``wrong(mistake, came, usually, where=...)`` makes the verdict of the exercise.
"""

from collections.abc import Callable, Iterable

from multigpu.checking.verdicts import Wrong
from multigpu.ranks.trace import Call

Teller = Callable[..., Wrong]


def examine_handles(calls: Iterable[Call], wrong: Teller) -> None:
    """Every call was waited for, and nobody wrote into what was on its way."""
    for call in calls:
        if call.is_open:
            raise wrong(
                "not_waited",
                f"{spoken(call)} was started, but nobody waited for it",
                "its handle was thrown away. Until handle.wait() returns, what you receive is not"
                " there, and what you send may not be gone.",
                where=call.place,
            )
        if call.changed and call.op == "recv":
            raise wrong(
                "changed_while_receiving",
                f"the buffer of {spoken(call)} was changed before the message was there",
                "two messages are received into one tensor at the same time, or it is written"
                " before handle.wait(). Give each its own buffer.",
                where=call.place,
            )
        if call.changed:
            raise wrong(
                "changed_while_sending",
                f"the tensor of {spoken(call)} was changed before it had gone",
                "it was received into, added to or cleared before handle.wait(). Who receives it"
                " may get the old numbers, the new ones or some of both.",
                where=call.place,
            )


def spoken(call: Call) -> str:
    """For example "rank 1's isend to rank 2"."""
    if not call.is_message:
        return f"rank {call.rank}'s {call.via}"
    towards = "to" if call.op == "send" else "from"
    peer = "any rank" if call.peer is None else f"rank {call.peer}"
    return f"rank {call.rank}'s {call.via} {towards} {peer}"
