"""What is wrong with a sum over ranks, told from which rank's numbers are in it how often."""

import torch.distributed as dist

from multigpu.checking import Returned
from multigpu.checking.verdicts import count, listed, numbered
from multigpu.ranks import rank_device

from .cases import numbers, shares, total
from .telling import examine_same_memory


def title_of(case, world):
    """For example "3 ranks, shape (7,), int64"."""
    return f"{count(world, 'rank')}, shape {case.shape}, {str(case.dtype)[6:]}"


def arguments_of(case, rank):
    """What the function gets on this rank: its own tensor."""
    place = rank_device() if dist.get_backend() == "nccl" else "cpu"  # gloo sends from the CPU
    return (numbers(case.of, rank, case.world).to(place),)


def holds(came, right):
    """Whether a rank's tensor is exactly this one."""
    tensor = came.tensor
    return tensor.dtype == right.dtype and tensor.value.equal(right)


def examine_sum(came, ranks, wrong, *, by_element):
    """Raise Wrong unless this rank holds the sum.

    ``by_element(came, parts, wrong)`` raises what an exercise says when elements went wrong in
    different ways.
    """
    right = total(came.case, came.world)
    if holds(came, right):
        return
    if (came.tensor.shape, came.tensor.dtype) != (right.shape, right.dtype):
        examine_same_memory(came, right, wrong)
    examine_whether_stored(came, ranks, right, wrong)
    examine_scale(came, right, wrong)
    parts = shares(came.tensor.value, came.case, came.world)
    if len(set(parts)) == 1 and parts[0] is not None:
        raise same_everywhere(came, parts[0], wrong)
    raise by_element(came, parts, wrong)


def examine_whether_stored(came, ranks, right, wrong):
    """The sum was computed, but is not where it should be."""
    if isinstance(came.returned, Returned) and came.returned.value.equal(right):
        raise wrong(
            "returned_not_in_place",
            f"rank {came.rank} returned the sum, but its tensor is not the sum",
            "`tensor = tensor + arrived` makes a new tensor that the caller never sees. += adds in"
            " place.",
        )
    if not holds(came, numbers(came.case, came.rank, came.world)):
        return
    done = [other.rank for other in ranks if holds(other, right)]
    if done:
        raise wrong(
            "only_some_ranks",
            f"rank {came.rank} still holds its own numbers; {numbered('rank', done)} "
            + ("has the sum" if len(done) == 1 else "have the sum"),
            "the sum was never sent back to the others.",
        )
    raise wrong(
        "unchanged",
        f"rank {came.rank} still holds its own numbers",
        "the sum was made in another tensor, or nothing was added. Write into the tensor that was"
        " given: += or copy_().",
    )


def examine_scale(came, right, wrong):
    """The sum, but divided or rounded."""
    value, world = came.tensor.value, came.world
    mean = right // world if not right.is_floating_point() else right / world
    if value.double().allclose(mean.double(), rtol=1e-6):
        raise wrong(
            "averaged",
            f"rank {came.rank} holds the sum divided by {world}",
            "all_reduce adds up. Who wants the mean divides afterwards.",
        )
    if value.double().allclose(right.double(), rtol=1e-6) and came.case.large:
        raise wrong(
            "rounded",
            f"rank {came.rank} holds the sum, but rounded",
            "it went through a smaller dtype on the way. Add and send in the tensor's own.",
        )


def same_everywhere(came, part, wrong):
    """Every element has the ranks in it equally often: ``part`` says how often."""
    own, found = came.rank, f"rank {came.rank} holds {in_words(part)}"
    once = [rank for rank, times in enumerate(part) if times]
    if len(set(part)) == 1:
        if not part[0]:
            return wrong(
                "cleared", f"rank {own} holds zeros", "it was cleared, and nothing was added."
            )
        return wrong(
            "multiplied",
            f"rank {own} holds exactly {part[0]}× the sum",
            "every message was added again, for example once per round or in both halves.",
        )
    if part == tuple(1 + (rank == own) for rank in range(len(part))):
        return wrong(
            "own_added_twice",
            found,
            "the sum starts with the rank's own numbers, and then these are added again.",
        )
    if len(once) == 1 and part[once[0]] == 1:
        return wrong(
            "one_ranks_numbers",
            f"rank {own} holds rank {once[0]}'s numbers alone",
            "what arrives overwrites what was there. Receive into a spare tensor, and add that.",
        )
    if max(part) > 1:
        return wrong(
            "counted_twice",
            found,
            "what had been added already was sent and added once more. Each rank's own numbers"
            " must reach each sum once.",
        )
    if not part[own] and len(once) == len(part) - 1:
        return wrong(
            "own_left_out",
            found,
            "the rank's own numbers were overwritten by the first message, or never added.",
        )
    return wrong(
        "ranks_missing",
        found,
        "a loop ends too early, or a sum was sent on before it was complete.",
    )


def in_words(part):
    """For example "rank 0 + 2 × rank 1, and nothing of rank 2"."""
    there = [
        f"{times} × rank {rank}" if times > 1 else f"rank {rank}"
        for rank, times in enumerate(part)
        if times
    ]
    missing = [rank for rank, times in enumerate(part) if not times]
    words = " + ".join(there) or "nothing"
    return f"{words}, and nothing of {numbered('rank', missing)}" if missing and there else words


def first_wrong(came, parts):
    """The elements that are not the sum, what the most telling of them is made of, and words."""
    bad = [index for index, part in enumerate(parts) if part != (1,) * came.world]
    index = next((index for index in bad if parts[index] is None), bad[0])
    part, value = parts[index], came.tensor.value.flatten()[index].item()
    made_of = in_words(part) if part else f"{value:.6g}, which is no sum of what the ranks held"
    found = (
        f"on rank {came.rank} {elements(bad)} of {came.case.size} went wrong: element {index} is"
        f" {made_of}"
    )
    return bad, part, found


def elements(indices):
    """For example "elements 0 to 3"."""
    if len(indices) > 8 and indices != list(range(indices[0], indices[-1] + 1)):
        return f"elements {listed(indices)}"
    return numbered("element", indices)
