"""What is wrong with an answer to ``collectives.ring_all_reduce``, in the learner's numbers."""

from multigpu.checking.comparing import examine_handles
from multigpu.checking.verdicts import count, numbered

from .cases import total
from .sums import examine_sum, first_wrong, holds
from .telling import examine_road, examine_same_memory, teller


def examine(ranks):
    """Raise Wrong unless every rank holds the sum, and it came around the ring in chunks."""
    right = total(ranks[0].case, ranks[0].world)
    expected = "every rank holds the sum of all ranks' tensors"
    tellers = [(came, teller("ring_all_reduce", came, expected)) for came in ranks]
    for came, wrong in tellers:
        examine_handles(came.calls, wrong)
    for came, wrong in tellers:
        if not holds(came, right):
            examine_steps(came, wrong)
        examine_sum(came, ranks, wrong, by_element=by_chunk)
    for came, wrong in tellers:
        examine_same_memory(came, right, wrong)
        examine_road(came, wrong, ("send", "recv"))
    for came in ranks:
        examine_cost(came)


def largest_chunk(came):
    return -(-came.case.size // came.world)  # rounded up


def examine_steps(came, wrong):
    """The sum is wrong: were there as many steps as there must be?"""
    sent, needed = len(came.sends), 2 * (came.world - 1)
    in_chunks = all(call.numel <= largest_chunk(came) for call in came.sends)
    if not sent or not in_chunks or came.case.size < came.world or sent == needed:
        return
    found = f"rank {came.rank} does not hold the sum, and sent {count(sent, 'message')}"
    if sent < needed:
        raise wrong(
            "too_few_steps",
            f"{found} where {came.world} ranks need {needed}",
            "a half is a step short. Each of the two halves has n - 1 steps: range(n - 1).",
        )
    raise too_many_steps(f"{found} where {needed} are enough", wrong)


def too_many_steps(found, wrong):
    return wrong(
        "too_many_steps",
        found,
        "a half has a step too many. Each of the two halves has n - 1 steps: range(n - 1).",
    )


def by_chunk(came, parts, wrong):
    """The elements are different sums: what went wrong with those that are not right?"""
    bad, part, found = first_wrong(came, parts)
    size, world = came.case.size, came.world
    own = tuple(int(rank == came.rank) for rank in range(world))
    if bad == list(range(size // world * world, size)) and all(parts[i] == own for i in bad):
        return wrong(
            "remainder_left_out",
            found,
            f"{size} // {world} rounds down, and what is left over at the end is in no chunk.",
        )
    if part is None:
        return wrong(
            "elements_mixed",
            found,
            "a chunk was added to another one, or a buffer was read before the message was there.",
        )
    if max(part) > 1:
        return wrong(
            "added_again",
            found,
            "a finished chunk was added. In the second half what arrives replaces the chunk.",
        )
    if sum(part) == 1:
        return wrong(
            "never_added",
            found,
            "look at chunk (r + 1) % n of rank r between the halves (if it first sent chunk r)."
            " Is it the sum there? Then the second half begins with another chunk than this"
            " finished one. If not, what arrives in the first half replaces the chunk and is not"
            " added.",
        )
    return wrong(
        "wrong_chunk",
        found,
        "the sum is not complete. A rank passes on the chunk that it has just received, so the"
        " number of the chunk changes from step to step.",
    )


def examine_cost(came):
    """The sum is right.  Did it travel as it should?"""
    world, most, size = came.world, largest_chunk(came), came.case.size
    wrong = teller(
        "ring_all_reduce",
        came,
        f"each rank sends to a neighbour, at most {count(2 * (world - 1), 'message')} of at most"
        f" {count(most, 'element')}",
    )
    neighbours = {(came.rank + 1) % world, (came.rank - 1) % world}
    for call in came.sends:
        if call.peer not in neighbours:
            raise wrong(
                "not_neighbours",
                f"rank {came.rank} sent to rank {call.peer}; its neighbours are"
                f" {numbered('rank', sorted(neighbours))}",
                "the sum is right, but not made in a ring.",
                where=call.place,
            )
        if call.numel > most:
            whole = all(other.numel >= size for other in came.sends)
            raise wrong(
                "whole_tensor" if whole else "chunk_too_large",
                f"rank {came.rank} sent {count(call.numel, 'element')}"
                + (", the whole tensor" if whole else " in one message"),
                "the sum is right, but every message is n times as large as it may be, so a link"
                " carries n/2 times as much. Cut the tensor into n chunks."
                if whole
                else "one chunk takes all that is left over. tensor_split(n) makes chunks that"
                " differ by one at most.",
                where=call.place,
            )
    if len(came.sends) > 2 * (world - 1):
        found = f"the sum is right, but rank {came.rank} sent {count(len(came.sends), 'message')}"
        raise too_many_steps(found, wrong)
