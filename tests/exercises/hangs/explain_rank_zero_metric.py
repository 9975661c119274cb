"""What is wrong with an answer to ``hangs.rank_zero_metric``, in the learner's numbers."""

import math

import torch

from multigpu.checking import Wrong, describe
from multigpu.checking.verdicts import listed, numbered

STUCK = {
    "expected": "every rank makes the same calls, whatever only rank 0 does with the result",
    "usually": "a collective stands where only some ranks come by, mostly under"
    " `if dist.get_rank() == 0`. Let all ranks call it; only printing is for rank 0 alone.",
}


def examine(values, results, wheres):
    """Raise Wrong unless every rank has the mean over ``values``, a list of tensors."""
    right = torch.cat(values).mean().item()
    counts = listed(map(len, values))
    expected = f"{right:.6g} on every rank, the mean over ranks with {counts} values"

    for rank, result in enumerate(results):

        def wrong(mistake, came, usually, where=wheres[rank]):
            return Wrong(
                f"rank_zero_metric.{mistake}",
                expected=expected,
                came=came,
                usually=usually,
                where=where,
            )

        examine_type(rank, result["returned"], wrong)
        if not close(result["returned"], right):
            raise wrong_value(values, [r["returned"] for r in results], rank, right, wrong)
        if result["changed"]:
            raise wrong(
                "values_changed",
                f"on rank {rank} the caller's values changed",
                "they were added up in place. Send a new tensor, not the caller's.",
            )


def examine_type(rank, came, wrong):
    if came is None:
        raise wrong(
            "returned_nothing",
            f"None on rank {rank}",
            "the function ends there without `return`, perhaps because it is inside an `if`.",
        )
    if not isinstance(came, float):
        raise wrong(
            "not_a_float",
            f"{describe(came)} on rank {rank}",
            "a tensor of one number becomes a float by .item().",
        )


def wrong_value(values, results, rank, right, wrong):
    """Why a rank has another number."""
    came = results[rank]
    found = f"{came:.6g} on rank {rank}"
    others = [other for other, result in enumerate(results) if not close(result, right)]
    if 0 not in others:
        return wrong(
            "only_rank_zero_knows",
            f"the mean on rank 0, but {found}",
            "reduce and gather bring the result to one rank only. With all_reduce every rank has"
            f" it; {numbered('rank', others)} need it too.",
        )
    sums = [float(v.sum()) for v in values]
    if all(close(result, sums[0] / len(values[0])) for result in results):
        return wrong("rank_zeros_mean", found, "that is the mean of rank 0's values alone.")
    known = {
        "mean_of_means": (
            sum(s / len(v) for s, v in zip(sums, values, strict=True)) / len(values),
            "the mean of the ranks' means: a value of a small rank counts more. Add up sums and"
            " counts, then divide.",
        ),
        "own_mean": (
            sums[rank] / len(values[rank]),
            "the mean of this rank's own values: nothing of the other ranks is in it.",
        ),
        "only_added": (sum(sums), "the sum of all values, which was never divided."),
        "divided_by_ranks": (
            sum(sums) / len(values),
            "the sum of all values divided by the number of ranks, not of values.",
        ),
        "divided_by_own_count": (
            sum(sums) / len(values[rank]),
            "the sum of all values divided by the number of this rank's own values.",
        ),
        "means_added": (
            sum(s / len(v) for s, v in zip(sums, values, strict=True)),
            "the sum of the ranks' means, which was never divided.",
        ),
    }
    for mistake, (value, usually) in known.items():
        if close(came, value):
            return wrong(mistake, found, f"that is {usually}")
    return wrong("other_value", found, "not all values were added, or not all were counted.")


def close(came, right):
    return math.isclose(came, right, rel_tol=1e-5, abs_tol=1e-9)
