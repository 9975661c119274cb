"""Properties that several exercises ask for, each declared once, with its sentences.

    handles_are_waited_for(ring_all_reduce)

adds one to the declaration of an exercise.  A property looks at what values do not show: the trace
of calls, their order, and where they come from.
"""

from collections.abc import Callable, Sequence
from typing import Any

from multigpu.checking.declaration import Case, Declaration
from multigpu.checking.verdicts import count, listed, numbered
from multigpu.ranks.calls import Call

Found = tuple[str, str] | None  # what came, and the line to blame


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


def travels_in_messages(
    exercise: Declaration,
    ops: Sequence[str] = ("send", "recv"),
    ranks: Callable[[Case], Sequence[int]] = lambda case: range(case.world),
) -> None:
    """Every rank, or each of ``ranks``, did what it cannot do without: no other road was taken."""

    @exercise.holds(
        "no_message",
        expects="the numbers travel in messages between ranks",
        usually="they took another road, such as a file, a store or numbers known in advance.",
        fix="Only messages between ranks count.",
    )
    def _(run: Any, case: Case) -> Found:
        if case.world == 1 or not case.size:
            return None
        for rank in ranks(case):
            done = {call.op for call in run.calls(case, rank)}
            for op in ops:
                if op not in done:
                    verb = "sent" if op == "send" else "received"
                    return f"rank {rank} {verb} no message", run.where(rank)
        return None


def only_neighbors_talk(exercise: Declaration) -> None:
    """Rank r sends to rank r + 1 or to rank r - 1, in a ring."""

    @exercise.holds(
        "not_neighbors",
        expects="a rank sends to its neighbors in the ring only",
        usually="the result is right, but not made in a ring.",
        fix="Rank r sends to rank (r + 1) % {n}.",
    )
    def _(run: Any, case: Case) -> Found:
        for rank in range(case.world):
            neighbors = {(rank + 1) % case.world, (rank - 1) % case.world}
            for call in run.calls(case, rank):
                if call.op == "send" and call.peer not in neighbors:
                    others = numbered("rank", sorted(neighbors))
                    came = f"rank {rank} sent to rank {call.peer}; its neighbors are {others}"
                    return came, call.place
        return None


def at_most_messages(
    exercise: Declaration, name: str, most: Callable[[Case], int], *, usually: str, fix: str
) -> None:
    """No rank sends more than ``most(case)`` messages."""

    expects = "each rank sends no more messages than it must"

    @exercise.holds(name, expects=expects, usually=usually, fix=fix)
    def _(run: Any, case: Case) -> Found:
        for rank in range(case.world):
            sends = [call for call in run.calls(case, rank) if call.op == "send"]
            if len(sends) > most(case):
                came = (
                    f"rank {rank} sent {count(len(sends), 'message')} where {most(case)} are enough"
                )
                return came, sends[-1].place
        return None


def leaves_gradients_on(exercise: Declaration) -> None:
    """The caller's grad mode is after the call what it was before."""

    @exercise.holds(
        "grad_mode_changed",
        expects="gradients are on for the caller after the call, as before it",
        usually="torch.set_grad_enabled(False) on a line of its own lasts after the function, for"
        " all code that follows.",
        fix="Write `with torch.no_grad():`.",
    )
    def _(run: Any, case: Case) -> str | None:
        return None if run.gradients_on(case) else "they are off"


def something_is_sent(exercise: Declaration) -> None:
    """Every rank calls something of torch.distributed."""

    @exercise.holds(
        "nothing_sent",
        expects="every rank sends its gradients, and all wait for each other",
        usually="the call is not there, or it is in a loop that had nothing left to go through:"
        " model.parameters() is a generator, and what uses it a second time gets nothing.",
        fix="Ask for model.parameters() again in every loop, or make a list of it once.",
        first=True,
    )
    def _(run: Any, case: Case) -> Found:
        for rank in range(case.world if case.world > 1 else 0):
            if not run.calls(case, rank):
                return f"rank {rank} called nothing of torch.distributed", run.where(rank)
        return None


def only_gradients_change(exercise: Declaration) -> None:
    """The weights stay as they are: what came on a rank has their names in ``changed``."""

    @exercise.holds(
        "weights_changed",
        expects="the weights stay as they are, and only .grad changes",
        usually="the parameter itself was averaged.",
        fix="Average parameter.grad, and leave the parameter to the optimizer.",
        first=True,
    )
    def _(run: Any, case: Case) -> Found:
        for rank, came in enumerate(run.came(case)):
            if came["changed"]:
                return f"on rank {rank}, {listed(came['changed'])} changed", run.where(rank)
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


# --- what a step sends ---------------------------------------------------------------------------


def sends_at_most(
    exercise: Declaration,
    name: str,
    most: Callable[[Case], float | None],
    *,
    expects: str,
    usually: str,
    fix: str,
    ops: Sequence[str] = (),
) -> None:
    """No step sends more than ``most(case)`` elements per rank; None means no limit.

    With ``ops`` only these calls count.  The drive notes when each step began and ended, in seconds
    of time.monotonic(): ``{"watched": {"steps": [(began, ended), ...]}}``.  ``case.total`` is Ψ,
    the number of trained elements.
    """

    @exercise.holds(name, expects=expects, usually=usually, fix=fix)
    def _(run: Any, case: Case) -> Found:
        limit = most(case)
        for number, volumes in enumerate(volume_by_step(run, case) if limit is not None else []):
            sent = sum(volume for op, volume in volumes.items() if not ops or op in ops)
            if limit is not None and sent > limit:
                parts = [f"{op} {volume / case.total:.1f} Ψ" for op, volume in volumes.items()]
                total = sum(volumes.values()) / case.total
                came = f"step {number + 1} sent {total:.1f} Ψ elements per rank: {listed(parts)}"
                return came, run.where()
        return None


def volume_by_step(run: Any, case: Case) -> list[dict[str, float]]:
    """By step, what each operation made a rank send, in elements; the mean over ranks.

    As if all ranks sent to all: in a ring (n - 1) / n of it travels.  An all-reduce of Ψ elements
    costs 2 Ψ; a reduce-scatter, an all-gather, a reduce or a broadcast costs Ψ.
    """
    steps: list[dict[str, float]] = [{} for _ in run.came(case)[0]["watched"]["steps"]]
    for rank, own in enumerate(run.came(case)):
        calls = [call for call in run.calls(case, rank) if call.numel]
        for volumes, (began, ended) in zip(steps, own["watched"]["steps"], strict=True):
            for call in calls:
                if began <= call.time <= ended and call.op not in ("recv", "barrier"):
                    n = len(call.members)
                    factor = {"all_reduce": 2, "all_gather": n, "send": n / (n - 1 or 1)}
                    volume = factor.get(call.op, 1) * call.numel / case.world
                    volumes[call.op] = volumes.get(call.op, 0) + volume
    return steps
