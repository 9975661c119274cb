"""What is wrong with an answer to ``distributed_data_parallel.weighted_average_gradients``."""

import math

from multigpu.checking import Wrong
from multigpu.checking.comparing import largest_difference, recognise, same
from multigpu.checking.verdicts import count, listed

from .unequal_rows import mistaken, train

STUCK = {
    "expected": "every rank makes the same calls in the same order, also one without rows and also"
    " for a parameter without a gradient",
    "usually": "a rank without rows returns at once, or parameters with .grad None are skipped,"
    " while others wait for their part. Take part with zeros.",
}

USUALLY = {
    "rounded": (
        "the gradient of all rows, but rounded",
        "it was sent or added up in a smaller dtype. Reduce the gradient as it is.",
    ),
    "ranks_count_equally": (
        "the plain mean over ranks",
        "a row of a small rank counts more than one of a large rank. Weigh each gradient by"
        " num_samples, and divide by the rows of all ranks.",
    ),
    "only_added": (
        "the sum of the ranks' gradients",
        "each of them belongs to a mean already. Weigh it by num_samples / rows of all ranks.",
    ),
    "weighted_but_not_divided": (
        "the sum of num_samples * gradient",
        "it was never divided by the rows of all ranks.",
    ),
    "divided_by_ranks": (
        "the sum of num_samples * gradient, divided by the number of ranks",
        "divide by the rows of all ranks, not by the number of ranks.",
    ),
    "divided_twice": (
        "the right gradient, divided once more",
        "the share num_samples / rows of all ranks holds the division already.",
    ),
    "own_gradient": (
        "this rank's own gradient",
        "the average went into a copy, or nothing was sent. It belongs in .grad.",
    ),
    "only_weighted": (
        "this rank's own gradient times its share of the rows",
        "it was weighted, but never added up over ranks.",
    ),
    "divided_by_own_rows": (
        "the sum of num_samples * gradient, divided by this rank's rows",
        "divide by the rows of all ranks: all-reduce num_samples too.",
    ),
}


class Report:
    """What the gradients of one training came to, and what is wrong with them."""

    def __init__(self, model, steps, results, wheres):
        self.steps, self.results, self.wheres = train(model, steps), results, wheres

    def examine(self):
        for number, step in enumerate(self.steps):
            for rank, notes in enumerate(self.results):
                for name in step.whole:
                    self.examine_gradient(number, rank, name, notes[number]["gradients"][name])
                self.examine_weights(number, rank, notes[number]["weights"])

    def wrong(self, mistake, number, rank, came, usually, expected="every .grad is that of one"):
        step = self.steps[number]
        return Wrong(
            f"weighted_average_gradients.{mistake}",
            expected=f"{expected} process on all {count(sum(step.counts), 'row')}"
            f" (step {number + 1}; the ranks hold {listed(step.counts)})",
            came=came,
            usually=usually,
            where=self.wheres[rank],
        )

    def rows_until(self, number):
        """Of what an answer takes shares in so many steps: all rows, and perhaps all ranks."""
        return math.prod(len(s.counts) * sum(s.counts) for s in self.steps[:number])

    def examine_gradient(self, number, rank, name, came):
        step = self.steps[number]
        right = step.whole[name]
        if right is None:
            if came is not None and came.value.any():
                raise self.wrong(
                    "gradient_from_nowhere",
                    number,
                    rank,
                    f"{name}.grad on rank {rank} has numbers, though no rank used the parameter",
                    "gradients of different parameters were mixed, or old ones kept.",
                )
            return
        if came is None:
            raise self.wrong(
                "still_none",
                number,
                rank,
                f"{name}.grad on rank {rank} is None",
                "a rank without rows, or one that did not use a parameter, needs the gradient too:"
                " its weights must take the same step. Put zeros there before the all-reduce.",
            )
        if same(came.value, right, share_of=self.rows_until(number + 1)):
            return
        what = f"{name}.grad on rank {rank}"
        known = recognise(came.value, {"rounded": right} | mistaken(step, name, rank))
        if known:
            mistake = known.partition(" ")[0]
            like, usually = USUALLY[mistake]
            raise self.wrong(mistake, number, rank, f"{what} is {like}", usually)
        raise self.wrong(
            "other_gradient",
            number,
            rank,
            f"{what} {largest_difference(came.value, right)}",
            "weigh each rank's gradient by num_samples / rows of all ranks, then add them up.",
        )

    def examine_weights(self, number, rank, came):
        for name, right in self.steps[number].before.items():
            if not same(came[name].value, right, share_of=self.rows_until(number)):
                raise Wrong(
                    "weighted_average_gradients.weights_changed",
                    expected="the weights stay as they are, only .grad changes",
                    came=f"on rank {rank}, {name} {largest_difference(came[name].value, right)}",
                    usually="the parameter was averaged or multiplied, and not its .grad.",
                    where=self.wheres[rank],
                )
