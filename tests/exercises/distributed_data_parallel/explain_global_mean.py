"""What is wrong with an answer to ``distributed_data_parallel.global_mean``, in its numbers.

``hangs.rank_zero_metric`` has a table like this one, for values that every rank has: each chapter's
checks stand by themselves, because they travel into the ranks together.
"""

import math

import torch

from multigpu.checking import Wrong, describe
from multigpu.checking.verdicts import listed, numbered

STUCK = {
    "expected": "every rank makes the same calls, also one without values",
    "usually": "a rank without values returns at once, or only some ranks call a collective, while"
    " the others wait for their part.",
}


class Report:
    """What the means of one case came to; ``values`` has the tensor of each rank."""

    def __init__(self, values, results, wheres):
        self.values, self.results, self.wheres = values, results, wheres
        self.sums = [v.double().sum().item() for v in values]
        self.counts = [v.numel() for v in values]
        everything = torch.cat([v.double().flatten() for v in values])
        self.right = everything.mean().item()  # nan where there is nothing

    def wrong(self, mistake, rank, came, usually):
        shapes = listed(str(tuple(v.shape)) for v in self.values)
        return Wrong(
            f"global_mean.{mistake}",
            expected=f"{self.right:.8g} on every rank"
            f" (values of shape {shapes}, {str(self.values[0].dtype)[6:]})",
            came=came,
            usually=usually,
            where=self.wheres[rank],
        )

    def examine(self):
        for rank, result in enumerate(self.results):
            self.examine_type(rank, result["returned"])
            if not close(result["returned"], self.right):
                raise self.wrong_value(rank, result["returned"])
            if result["changed"]:
                raise self.wrong(
                    "values_changed",
                    rank,
                    f"on rank {rank} the caller's values changed",
                    "they were added up in place. Send a new tensor, not the caller's.",
                )

    def examine_type(self, rank, came):
        if came is None:
            raise self.wrong(
                "returned_nothing",
                rank,
                f"None on rank {rank}",
                "the function ends there without `return`.",
            )
        if not isinstance(came, float):
            raise self.wrong(
                "not_a_float",
                rank,
                f"{describe(came)} on rank {rank}",
                "a tensor of one number becomes a float by .item().",
            )

    def wrong_value(self, rank, came):
        found = f"{came:.8g} on rank {rank}"
        if math.isnan(self.right):
            usually = "without any value there is no mean: 0 / 0, float('nan')."
            return self.wrong("not_nan", rank, found, usually)
        if math.isnan(came):
            empty = [r for r, count in enumerate(self.counts) if not count]
            verb = "has" if len(empty) == 1 else "have"
            why = f"; {numbered('rank', empty)} {verb} no values" if empty else ""
            return self.wrong(
                "nan_from_an_empty_rank",
                rank,
                found + why,
                "the mean of no values is nan, and nan spreads. Send sums and counts, not means.",
            )
        others = [r for r, own in enumerate(self.results) if not self.is_right(own["returned"])]
        if 0 not in others:
            return self.wrong(
                "only_rank_zero_knows",
                rank,
                f"the mean on rank 0, but {found}",
                "reduce and gather bring the result to one rank only. With all_reduce every rank"
                " has it.",
            )
        for mistake, (value, usually) in self.known(rank).items():
            if close(came, value):
                return self.wrong(mistake.partition(" ")[0], rank, found, f"that is {usually}")
        return self.wrong(
            "other_value", rank, found, "add up all sums and all counts, then divide once."
        )

    def is_right(self, came):
        return isinstance(came, float) and close(came, self.right)

    def known(self, rank):
        """By mistake: the value it gives on this rank, and what that is."""
        n, total = len(self.values), sum(self.sums)
        means = [s / c for s, c in zip(self.sums, self.counts, strict=True) if c]
        of_means = "the mean of the ranks' means: a value of a small rank counts more than others."
        rows = sum(v.shape[0] if v.ndim else 1 for v in self.values)
        return {
            "whole_number": (
                math.floor(self.right),
                "the mean without its decimals: // or an integer tensor cuts them off.",
            ),
            "whole_number towards zero": (
                math.trunc(self.right),
                "the mean without its decimals: // or an integer tensor cuts them off.",
            ),
            "mean_of_means": (sum(means) / n, of_means),
            "mean_of_means of those with values": (sum(means) / len(means), of_means),
            "own_mean": (
                self.sums[rank] / (self.counts[rank] or 1),
                "the mean of this rank's own values: nothing of the other ranks is in it.",
            ),
            "only_added": (total, "the sum of all values, which was never divided."),
            "rows_counted": (
                total / rows,
                "the sum of all values divided by the number of rows. len() counts rows, numel()"
                " counts values.",
            ),
            "divided_by_ranks": (
                total / n,
                "the sum of all values divided by the number of ranks, not of values.",
            ),
            "divided_by_own_count": (
                total / (self.counts[rank] or 1),
                "the sum of all values divided by the number of this rank's own values.",
            ),
            "means_added": (sum(means), "the sum of the ranks' means."),
            "summed_in_own_dtype": (
                self.in_own_dtype(),
                f"what comes of sum and count in {str(self.values[0].dtype)[6:]}, which cannot hold"
                " them: they are rounded, or too large for it. Take float64 for both.",
            ),
        }

    def in_own_dtype(self):
        """The mean when sums and counts are added up in the dtype of the values."""
        dtype = self.values[0].dtype
        total, number = torch.zeros((), dtype=dtype), torch.zeros((), dtype=dtype)
        for values in self.values:
            total += values.sum(dtype=dtype)
            number += torch.tensor(values.numel(), dtype=dtype)
        return (total / number).item()


def close(came, right):
    if math.isnan(right):
        return math.isnan(came)
    return math.isclose(came, right, rel_tol=1e-5, abs_tol=1e-9)
