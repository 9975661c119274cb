"""What is wrong with an answer to ``distributed_data_parallel.average_gradients``."""

from multigpu.checking import Wrong
from multigpu.checking.comparing import largest_difference, recognise, same
from multigpu.checking.wording import count, listed, numbered

from .one_process import added, mistaken

OUT_OF_STEP = (
    "a gradient that is None was skipped on one rank, while other ranks wait for it. Its part is"
    " zeros."
)

# By mistake: what the gradient is, and which code usually does that.
KNOWN = {
    "summed": (
        "the sum over all ranks",
        "all_reduce adds up. Divide by dist.get_world_size(), which is {n} here.",
    ),
    "divided_twice": (
        "the mean divided by {n} once more",
        "it was divided twice, for example before the all-reduce and after it.",
    ),
    "divided_by_users": (
        "the sum divided by the number of ranks that have one",
        "a rank that has none counts as zero: divide by the number of all ranks.",
    ),
    "divided_by_2": (
        "the sum divided by 2",
        "there are {n} ranks here: divide by dist.get_world_size(), not by a fixed number and not"
        " by the number of the other ranks.",
    ),
    "not_averaged": (
        "this rank's own gradient",
        "the result is in another tensor and was not put into .grad; or an asynchronous call was"
        " not waited for.",
    ),
    "only_divided": (
        "this rank's own gradient divided by {n}",
        "it was divided, but the sum over the ranks is not in .grad; or an asynchronous call was"
        " not waited for.",
    ),
    "of_one_rank": (
        "the gradient of rank {rank} alone",
        "one rank's gradient was copied to the others. A mean needs those of all.",
    ),
    "multiplied": ("{n} times the sum", "it was reduced twice."),
    "largest": ("the largest one of all ranks", "ReduceOp.MAX is not a sum."),
}


class Report:
    """What became of ``gradients`` on every rank, and what is wrong with it."""

    def __init__(self, gradients, models, results, where):
        self.n, self.gradients, self.models = len(gradients), gradients, models
        self.results, self.where = results, where

    def wrong(self, mistake, expected, came, usually):
        return Wrong(
            f"average_gradients.{mistake}",
            expected=f"{expected} ({count(self.n, 'rank')})",
            came=came,
            usually=usually,
            where=self.where,
        )

    def examine(self):
        for rank in range(self.n):
            self.examine_weights(rank)
        for name in self.gradients[0]:
            for rank in range(self.n):
                self.examine_gradient(name, rank)

    def examine_weights(self, rank):
        for name, right in self.models[rank].named_parameters():
            came = self.results[rank]["weights"].get(name)
            if came is not None and same(came.value, right.detach()):
                continue
            found = "is gone" if came is None else largest_difference(came.value, right.detach())
            raise self.wrong(
                "weights_changed",
                "the weights stay as they are, only .grad changes",
                f"on rank {rank}, {name} {found}",
                "the parameter itself was reduced, and not its gradient: parameter.grad.",
            )

    def examine_gradient(self, name, rank):
        parts = [own[name] for own in self.gradients]
        total, came = added(parts), self.results[rank]["gradients"].get(name)
        if total is None:
            self.examine_unused(name, rank, came)
            return
        users = [i for i, part in enumerate(parts) if part is not None]
        expected = f"{name}.grad on every rank is the sum over {numbered('rank', users)}"
        expected += f" divided by {self.n}"
        if came is None:
            raise self.wrong(
                "missing_stays_none" if parts[rank] is None else "gradient_lost",
                expected,
                f"on rank {rank} it is None",
                "this rank had none, and what the others sent was thrown away. Put the mean into"
                " .grad here too."
                if parts[rank] is None
                else "something set .grad to None.",
            )
        if not same(came.value, total / self.n):
            raise self.wrong_mean(name, rank, expected, came.value, parts)

    def examine_unused(self, name, rank, came):
        if came is None or not came.value.any():
            return
        raise self.wrong(
            "other_gradient",
            f"{name}.grad stays None or becomes zeros: no rank has one",
            f"on rank {rank} it has other numbers",
            "numbers of another parameter came into it.",
        )

    def wrong_mean(self, name, rank, expected, came, parts):
        known = self.from_one_rank(name, parts) | mistaken(parts, rank)
        mistake, _, other = (recognise(came, known) or "other_gradient").partition(" ")
        what, usually = KNOWN.get(mistake) or (
            f"another tensor, which {largest_difference(came, added(parts) / self.n)}",
            "gradients of different parameters were mixed: do all ranks go through them in the"
            " same order?",
        )
        words = {"n": self.n, "rank": other}
        wrong = [n for n, came in self.results[rank]["gradients"].items() if self.is_wrong(n, came)]
        more = f", and so {'are' if wrong[2:] else 'is'} {listed(wrong[1:], most=3)}"
        return self.wrong(
            mistake,
            expected,
            f"on rank {rank} it is {what.format(**words)}" + (more if wrong[1:] else ""),
            usually.format(**words),
        )

    def is_wrong(self, name, came):
        total = added([own[name] for own in self.gradients])
        return total is not None and (came is None or not same(came.value, total / self.n))

    def from_one_rank(self, name, parts):
        """The gradient of one rank, if all ranks have it."""
        came = [own["gradients"].get(name) for own in self.results]
        return {
            f"of_one_rank {j}": part
            for j, part in enumerate(parts)
            if self.n > 1 and part is not None
            if all(tensor is not None and same(tensor.value, part) for tensor in came)
        }
