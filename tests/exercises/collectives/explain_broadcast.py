"""What is wrong with an answer to ``collectives.broadcast``, in the learner's numbers."""

from multigpu.checking import Returned
from multigpu.checking.comparing import examine_handles

from .cases import numbers
from .telling import examine_road, examine_same_memory, teller


def examine(ranks):
    """Raise Wrong unless every rank holds what the source held."""
    src, world = ranks[0].case.src, ranks[0].world
    expected = f"broadcast(tensor, src={src}): every rank holds what rank {src} held"
    right = numbers(ranks[0].case, src, world)
    tellers = [(came, teller("broadcast", came, expected)) for came in ranks]
    for came, wrong in tellers:
        examine_handles(came.calls, wrong)
    source, wrong = tellers[src]
    examine_source(source, wrong, right)
    for came, wrong in tellers:
        examine_values(came, right, ranks, wrong)
    for came, wrong in tellers:
        examine_same_memory(came, right, wrong)
        if came.rank != src:
            examine_road(came, wrong, ("recv",))


def holds(came, right):
    tensor = came.tensor
    return tensor.dtype == right.dtype and tensor.value.equal(right)


def examine_source(came, wrong, right):
    """The source keeps its numbers."""
    if holds(came, right):
        return
    who = owner(came)
    raise wrong(
        "source_changed",
        f"rank {came.rank} itself is the source, but now it holds "
        + (f"what rank {who} held" if who is not None else "other numbers"),
        "the source received a message, or its tensor was cleared or added to. It only sends."
        if who is None or came.world < 2
        else "the source received a message. Does the function ask for src, or for rank 0?",
    )


def owner(came):
    """The rank whose numbers these are, None if they are nobody's."""
    held = (numbers(came.case, rank, came.world) for rank in range(came.world))
    return next((rank for rank, right in enumerate(held) if holds(came, right)), None)


def examine_values(came, right, ranks, wrong):
    if holds(came, right):
        return
    if isinstance(came.returned, Returned) and came.returned.value.equal(right):
        raise wrong(
            "returned_not_in_place",
            f"rank {came.rank} returned the right numbers, but its tensor has others",
            "the message was received into a new tensor. `tensor = ...` gives only your variable"
            " another one: receive into tensor itself, or tensor.copy_(...).",
        )
    who = owner(came)
    if who == came.rank:
        reached = [other.rank for other in ranks if other.rank != came.case.src]
        reached = [rank for rank in reached if holds(ranks[rank], right)]
        raise wrong(
            "not_received",
            f"rank {came.rank} still holds its own numbers"
            + (f"; rank {reached[0]} got them" if reached else ""),
            "it received nothing, or into another tensor. Every rank but src receives into tensor.",
        )
    if who is not None:
        raise wrong(
            "wrong_source",
            f"rank {came.rank} holds what rank {who} held",
            "src was left out of account, or a rank forwarded its own tensor before the message"
            " had reached it.",
        )
    difference = came.tensor.value.double() - right.double()
    if came.tensor.shape == right.shape and difference.abs().max() <= 1e-6 * right.abs().max():
        raise wrong(
            "rounded",
            f"rank {came.rank} holds the right numbers, but rounded",
            "they went through a smaller dtype on the way. Send them in their own.",
        )
    raise wrong(
        "other_values",
        f"rank {came.rank} holds numbers that no rank held",
        "a broadcast only copies. Something was added, or cleared and never filled.",
    )
