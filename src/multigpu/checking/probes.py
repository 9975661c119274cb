"""Properties that exercises of several chapters ask for, each declared once, with its sentences.

    handles_are_waited_for(ring_all_reduce)

adds them to the declaration of an exercise.  A property looks at what values do not show: the trace
of calls, their order, and where they come from.  Those of one chapter are beside its declarations.
"""

from collections.abc import Callable, Sequence
from typing import Any

from multigpu.checking.declaration import Case, Declaration
from multigpu.ranks.calls import Call

Found = str | tuple[str, str] | None  # what came, and perhaps the line to blame


def handles_are_waited_for(
    exercise: Declaration,
    ranks: Callable[[Case], Sequence[int]] = lambda case: range(case.world),
) -> None:
    """Nothing is still under way at the end, and no tensor changes while it is sent or filled.

    ``ranks`` are those whose calls are looked at.
    """

    @exercise.holds(
        "not_waited",
        expects="every call that is started is waited for",
        usually="its handle was thrown away.",
        fix="Until handle.wait() returns, what you receive is not there, and what you send may"
        " not be gone.",
        first=True,
    )
    def _(run: Any, case: Case) -> Found:
        for call in calls_of(run, case, ranks(case)):
            if call.is_open:
                return f"{spoken(call)} was started, but no code waited for it", call.place
        return None

    @exercise.holds(
        "changed_while_receiving",
        expects="a tensor that is being received stays untouched until handle.wait()",
        usually="two messages are received into one tensor at the same time, or it is written too"
        " early.",
        fix="Give each message its own buffer, and wait before you write.",
        first=True,
    )
    def _(run: Any, case: Case) -> Found:
        for call in calls_of(run, case, ranks(case)):
            if call.changed and call.op == "recv":
                return f"the buffer of {spoken(call)} was changed on the way", call.place
        return None

    @exercise.holds(
        "changed_while_sending",
        expects="a tensor that is being sent stays untouched until handle.wait()",
        usually="it was received into, added to, divided or cleared too early: other ranks may get"
        " the old numbers, the new ones or some of both.",
        fix="Wait for the handle before you write into it, or send a clone().",
        first=True,
    )
    def _(run: Any, case: Case) -> Found:
        for call in calls_of(run, case, ranks(case)):
            if call.changed and call.op != "recv":
                return f"the tensor of {spoken(call)} was changed on the way", call.place
        return None


def noted_on_each_rank(
    exercise: Declaration,
    name: str,
    wrong: Callable[[dict[str, Any], Case], str | bool | list[Any] | None],
    *,
    expects: str,
    usually: str,
    fix: str,
    first: bool = True,
) -> None:
    """A property of what the drive notes as "watched": ``wrong(watched, case)`` tells what must not
    be on a rank, in words that follow "on rank 1", or returns something false.
    """

    @exercise.holds(name, expects, usually, fix=fix, first=first)
    def _(run: Any, case: Case) -> Found:
        for rank, came in enumerate(run.came(case)):
            words = wrong(came["watched"], case)
            if words:
                return f"on rank {rank} {words}"
        return None


def calls_of(run: Any, case: Case, ranks: Sequence[int]) -> list[Any]:
    """The calls of these ranks in one case."""
    return [call for rank in ranks for call in run.calls(case, rank)]


def spoken(call: Call) -> str:
    """For example "rank 1's isend to rank 2"."""
    if not call.is_message:
        return f"rank {call.rank}'s {call.via}"
    towards = "to" if call.op == "send" else "from"
    peer = "any rank" if call.peer is None else f"rank {call.peer}"
    return f"rank {call.rank}'s {call.via} {towards} {peer}"
