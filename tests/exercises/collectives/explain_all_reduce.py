"""What is wrong with an answer to ``collectives.all_reduce``, in the learner's numbers."""

from multigpu.checking.comparing import examine_handles

from .cases import total
from .sums import examine_sum, first_wrong
from .telling import examine_road, examine_same_memory, teller


def examine(ranks):
    """Raise Wrong unless every rank holds the sum of all."""
    right = total(ranks[0].case, ranks[0].world)
    expected = "every rank holds the sum of the tensors of all ranks"
    tellers = [(came, teller("all_reduce", came, expected)) for came in ranks]
    for came, wrong in tellers:
        examine_handles(came.calls, wrong)
    for came, wrong in tellers:
        examine_sum(came, ranks, wrong, by_element=by_element)
    for came, wrong in tellers:
        examine_same_memory(came, right, wrong)
        examine_road(came, wrong, ("send", "recv"))


def by_element(came, parts, wrong):
    """The elements are different sums."""
    _, _, found = first_wrong(came, parts)
    return wrong(
        "some_elements",
        found,
        "only a part of the tensor was added, parts were mixed up, or a buffer was read before the"
        " message was there.",
    )
