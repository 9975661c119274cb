"""What is wrong with an answer to ``hangs.reordered_reductions``, in the learner's numbers."""

import torch

from multigpu.checking import Wrong
from multigpu.checking.comparing import alike, factor_between, largest_difference, same
from multigpu.checking.verdicts import listed, times

STUCK = {
    "expected": "every rank reduces the tensors in the same order of names",
    "usually": "the order is that in which each rank filled its dict (or that of a set, which is"
    " none). Ranks only know how many calls they have made, not for which name: sort the names.",
}
MIXED = "tensors of different names were added up, or some left out."
ROUNDED = "the sum was made in a smaller dtype and is rounded. Reduce the tensor as it is."


def examine(orders, results, wheres):
    """Raise Wrong unless every rank holds all sums.

    ``orders`` has the dict of each rank, ``results`` what its dict holds now, and what the tensors
    hold that were in it.
    """
    sums = {name: sum(own[name] for own in orders) for name in orders[0]}
    for rank, result in enumerate(results):

        def wrong(mistake, came, usually, rank=rank):
            keys = [listed(own, most=4) for own in orders]
            situation = "; ".join(f"rank {r}: {key}" for r, key in enumerate(keys))
            return Wrong(
                f"reordered_reductions.{mistake}",
                expected=f"under each name the sum over ranks, in place ({situation})",
                came=came,
                usually=usually,
                where=wheres[rank],
            )

        if set(result["dict"]) != set(sums):
            raise wrong(
                "names_changed",
                f"the dict of rank {rank} has the names {listed(result['dict'])}",
                "names were added or removed. Only the numbers in the tensors change.",
            )
        for name, right in sums.items():
            came = result["tensors"][name].value
            if not same(came, right):
                now = result["dict"][name].value
                untouched = all(
                    same(other["tensors"][name].value, own[name])
                    for other, own in zip(results, orders, strict=True)
                )
                raise wrong_sum(orders, rank, name, came, now, right, untouched, wrong)


def wrong_sum(orders, rank, name, came, now, right, untouched, wrong):
    """Why one tensor of a rank, ``came``, does not hold its sum.

    ``now`` is what its dict has under this name, ``untouched`` whether no rank's tensor changed.
    """
    found = f"on rank {rank}, {name} {largest_difference(came, right)}"
    if same(now, right):
        return wrong(
            "not_in_place",
            f"{found}; the sum is in another tensor under the same name",
            "a new tensor was put into the dict. Who holds the old one does not see the sum:"
            " all_reduce on the tensor itself, or copy_ into it.",
        )
    if untouched:
        return wrong(
            "nothing_added",
            f"{found}: that is what it held before",
            "the sum was computed in a copy and never written back, or the call was left out.",
        )
    if same(came, sum_by_place(orders, rank, name)):
        place = list(orders[rank]).index(name)
        others = [list(own)[place] for own in orders]
        return wrong(
            "added_by_place",
            f"on rank {rank}, {name} is the sum of what lies at the same place on each rank"
            f" (place {place}: {listed(others)})",
            "every rank goes through its dict in its own order, and the sizes happen to fit, so"
            " nothing fails: the sums are silently wrong. Sort the names.",
        )
    factor = factor_between(came, right)
    if factor is not None:
        return wrong(
            "multiplied",
            f"on rank {rank}, {name} is {times(factor)} the sum",
            "it was divided or reduced more than once. Asked for is the plain sum.",
        )
    return wrong("other_sum", found, ROUNDED if alike(came, right) else MIXED)


def sum_by_place(orders, rank, name):
    """What comes out when each rank's numbers are added in the order of its own dict."""
    first, *others = (torch.cat([each.flatten() for each in own.values()]) for own in orders)
    pieces = sum(others, first).split([tensor.numel() for tensor in orders[rank].values()])
    return pieces[list(orders[rank]).index(name)].view_as(orders[rank][name])
