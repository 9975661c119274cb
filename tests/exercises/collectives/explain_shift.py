"""What is wrong with an answer to ``collectives.shift``, in the learner's numbers."""

from multigpu.checking import Returned, describe
from multigpu.checking.comparing import examine_handles

from .cases import numbers
from .telling import examine_road, teller


def examine(ranks):
    """Raise Wrong unless every rank got what the rank before it sent."""
    tellers = [(came, teller("shift", came, task(came))) for came in ranks]
    for came, wrong in tellers:
        examine_form(came, wrong)
        examine_handles(came.calls, wrong)
    for came, wrong in tellers:
        examine_values(came, ranks, wrong)
    for came, wrong in tellers:
        examine_input(came, wrong)
        examine_road(came, wrong, ("send", "recv"))
        examine_kept(came, wrong)


def task(came):
    """What this rank should have got."""
    if came.world == 1:
        return "with one rank the result is a copy of the tensor"
    return f"rank {came.rank} gets what rank {before(came)} sent"


def before(came):
    return (came.rank - 1) % came.world


def examine_form(came, wrong):
    returned, case = came.returned, came.case
    if returned is None:
        raise wrong("returned_nothing", "None", "the function ends without `return`.")
    if not isinstance(returned, Returned):
        raise wrong("not_a_tensor", describe(returned), "return the tensor that arrived, alone.")
    if returned.shape != case.shape:
        raise wrong(
            "shape_changed",
            f"rank {came.rank} returned shape {tuple(returned.shape)}",
            "receive into torch.empty_like(tensor): it has the right shape and dtype.",
        )
    if returned.dtype != case.dtype:
        raise wrong(
            "dtype_changed",
            f"rank {came.rank} returned {returned.dtype}",
            "torch.zeros(shape) is float32, whatever the tensor is. torch.empty_like(tensor) has"
            " its dtype.",
        )


def examine_values(came, ranks, wrong):
    value, world = came.returned.value, came.world
    who = owner(came)
    if came.case.size == 0 or who == before(came):
        return
    right = numbers(came.case, before(came), world)
    found = f"rank {came.rank} returned what rank {who} held"
    if who == came.rank:
        raise wrong(
            "own_returned",
            f"{found}, its own tensor",
            "the function returns what it sent, not what it received; or the rank before it sends"
            " on what it has just received.",
        )
    if all(owner(other) == (other.rank + 1) % world for other in ranks):
        raise wrong(
            "wrong_direction",
            found,
            "the ring runs the other way: rank r sends to r + 1 and receives from r - 1.",
        )
    if who is not None:
        raise wrong(
            "wrong_rank",
            found,
            "a rank number was computed wrongly. (rank + 1) % n is the next, (rank - 1) % n the"
            " one before.",
        )
    if not value.any():
        raise wrong(
            "nothing_received",
            f"rank {came.rank} returned zeros",
            "the new tensor was returned before anything was received into it.",
        )
    if value.double().allclose(right.double(), rtol=1e-6):
        raise wrong(
            "rounded",
            f"rank {came.rank} returned the right numbers, but rounded",
            "they went through a smaller dtype on the way. Send them in their own.",
        )
    raise wrong(
        "other_values",
        f"rank {came.rank} returned numbers that no rank held",
        "something was added or overwritten, or the message was read before it was there.",
    )


def owner(came):
    """The rank whose numbers were returned, None if they are nobody's."""
    held = (numbers(came.case, rank, came.world) for rank in range(came.world))
    return next((rank for rank, right in enumerate(held) if came.returned.value.equal(right)), None)


def examine_input(came, wrong):
    """The caller's tensor is as it was, and the result does not lie in its memory."""
    own = numbers(came.case, came.rank, came.world)
    if not came.memory.equal(own.flatten()):
        raise wrong(
            "input_changed",
            f"the result is right, but rank {came.rank}'s own tensor has changed too",
            "the message was received into the tensor that was given. Receive into a new one.",
        )
    if came.shares_memory:
        raise wrong(
            "not_a_copy",
            f"rank {came.rank} returned the tensor that it was given, or a view of it",
            "who writes into the result then changes the input. Return a new tensor"
            " (tensor.clone() makes one).",
        )


def examine_kept(came, wrong):
    """What was returned is the caller's own: no later call writes into it."""
    if not came.kept.value.equal(came.returned.value):
        raise wrong(
            "result_overwritten",
            f"rank {came.rank}'s result was right, but a later call of shift has changed it",
            "one buffer is kept for all calls, so every result lies in the same memory. Make a new"
            " one in every call: torch.empty_like(tensor).",
        )
