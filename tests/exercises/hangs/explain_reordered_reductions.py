"""What is wrong with an answer to ``hangs.reordered_reductions``, in the learner's numbers."""

from multigpu.checking import Wrong
from multigpu.checking.comparing import factor_between, largest_difference, same
from multigpu.checking.wording import listed, times

STUCK = {
    "expected": "every rank reduces the tensors in the same order of names",
    "usually": "the order is that in which each rank filled its dict (or that of a set, which is"
    " none). Ranks only know how many calls they have made, not for which name: sort the names.",
}


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
                raise wrong_sum(orders, rank, name, came, now, right, wrong)


def wrong_sum(orders, rank, name, came, now, right, wrong):
    """Why one tensor of a rank, ``came``, does not hold its sum."""
    found = f"on rank {rank}, {name} {largest_difference(came, right)}"
    if same(now, right):
        return wrong(
            "not_in_place",
            f"{found}; the sum is in another tensor under the same name",
            "a new tensor was put into the dict. Who holds the old one does not see the sum:"
            " all_reduce on the tensor itself, or copy_ into it.",
        )
    if same(came, orders[rank][name]):
        return wrong(
            "nothing_added",
            f"{found}: that is what it held before",
            "the sum was computed in a copy and never written back, or the call was left out.",
        )
    place = list(orders[rank]).index(name)
    others = [list(own)[place] for own in orders]
    by_place = [own[other] for own, other in zip(orders, others, strict=True)]
    alike = len({part.shape for part in by_place}) == 1
    if alike and same(came, sum(by_place)):
        return wrong(
            "added_by_place",
            f"on rank {rank}, {name} is the sum of {listed(others)}: what the ranks hold at"
            f" place {place}",
            "every rank goes through its dict in its own order, and the shapes happen to fit, so"
            " nothing fails: the sums are silently wrong. Sort the names.",
        )
    factor = factor_between(came, right)
    if factor is not None:
        return wrong(
            "multiplied",
            f"on rank {rank}, {name} is {times(factor)} the sum",
            "it was divided or reduced more than once. Asked for is the plain sum.",
        )
    return wrong("other_sum", found, "tensors of different names were added up, or some left out.")
