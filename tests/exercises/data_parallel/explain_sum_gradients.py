"""What is wrong with an answer to ``data_parallel.sum_gradients``, in the learner's numbers."""

from multigpu.checking import Wrong
from multigpu.checking.comparing import alike, factor_between, largest_difference, recognise, same
from multigpu.checking.verdicts import count, listed, numbered, times

from .grad_mode import LEFT_OFF


class Report:
    """What ``sum_gradients`` made of ``gradients``, and what is wrong with it."""

    def __init__(self, gradients, order, replicas, where):
        self.gradients = gradients
        self.n = len(order)
        self.home = f"cuda:{order[0]}"
        self.replicas = replicas
        self.where = where

    def wrong(self, mistake, name, came, usually):
        here = [i for i, own in enumerate(self.gradients) if own[name] is not None]
        expected = (
            f"{name}.grad of replica 0 is the sum of those of {numbered('replica', here)}"
            if here
            else f"{name}.grad of replica 0 stays None, because no replica has one"
        )
        return Wrong(
            f"sum_gradients.{mistake}",
            expected=expected + (f" ({count(self.n, 'replica')})" if len(here) < self.n else ""),
            came=came,
            usually=usually,
            where=self.where,
        )

    def examine_names(self):
        """Every replica still has all its parameters."""
        for i, replica in enumerate(self.replicas):
            lost = [name for name in self.gradients[i] if name not in replica["weights"]]
            if lost:
                raise Wrong(
                    "sum_gradients.parameters_lost",
                    expected="every replica keeps its parameters, only .grad changes",
                    came=f"replica {i} has no {listed(lost, most=4)} any more",
                    usually="a parameter was deleted, set to None or registered under another"
                    " name. Write to its .grad only.",
                    where=self.where,
                )

    def examine(self, name):
        """The gradient of one parameter of the first replica."""
        parts = {i: own[name] for i, own in enumerate(self.gradients) if own[name] is not None}
        came = self.replicas[0]["gradients"][name]
        if came is None and not parts:
            return
        if not parts:
            raise self.wrong(
                "zeros_for_none",
                name,
                "zeros" if not came.value.any() else "a tensor",
                "an optimizer skips a parameter whose .grad is None; zeros would still move it by"
                " momentum and weight decay.",
            )
        if came is None:
            raise self.wrong(
                "first_had_none",
                name,
                "None",
                "it was skipped where replica 0 has no gradient of its own."
                if 0 not in parts
                else "the gradient of replica 0 was removed.",
            )
        if not same(came.value, sum(parts.values())):
            raise self.wrong_sum(name, came.value, parts)
        if came.device != self.home:
            raise self.wrong(
                "wrong_gpu",
                name,
                f"the sum, but on {came.device}; replica 0 is on {self.home}",
                "the sum goes to the GPU of replica 0.",
            )

    def wrong_sum(self, name, came, parts):
        """The known wrong sums, from the simple to the rare."""
        total, own = sum(parts.values()), parts.get(0, 0)
        what = f"{name}.grad on {self.home}"
        factor = factor_between(came, total)
        if factor is not None and factor < 1:
            return self.wrong(
                "averaged",
                name,
                f"{what} is {times(factor)} the sum",
                "it was divided. The mean is in the loss already, which is one mean over all rows.",
            )
        if alike(came, total + total - own):
            return self.counted_twice(name, what)
        if factor is not None:
            return self.wrong(
                "multiplied", name, f"{what} is {times(factor)} the sum", "it was added up twice."
            )
        if 0 in parts and alike(came, parts[0]):
            return self.unchanged(name, what, parts, total)
        known = {
            "last_one_wins": parts[max(parts)],
            "first_left_out": total - own,
            "first_counted_twice": total + own,
        } | {f"one_left_out {i}": total - part for i, part in parts.items()}
        mistake, _, left_out = (recognise(came, known) or "wrong_sum").partition(" ")
        found, usually = {
            "last_one_wins": (
                f"the gradient of replica {max(parts)} alone",
                "each gradient overwrites the one before it. Add them.",
            ),
            "first_left_out": (
                "the sum of all but replica 0's own",
                "the sum starts with nothing, or replaces what replica 0 had.",
            ),
            "first_counted_twice": (
                "the sum, and replica 0's own once more",
                "the sum starts with replica 0's own, and then it is added again.",
            ),
            "one_left_out": (
                f"the sum without replica {left_out}",
                "a loop ends too early, or a slice leaves one out.",
            ),
            "wrong_sum": (
                f"another tensor, which {largest_difference(came, total)}",
                "the gradients of different parameters were mixed, or other numbers added.",
            ),
        }[mistake]
        return self.wrong(mistake, name, f"{what} is {found}", usually)

    def counted_twice(self, name, what):
        """Is that because the parameter has two names?  Then others are counted once."""
        tied = name == "encode.weight" and self.is_sum("encode.bias")
        return self.wrong(
            "tied_twice" if tied else "others_counted_twice",
            name,
            f"in {what} every other replica is counted twice",
            "encode.weight and decode.weight are one parameter with two names."
            " parameters() gives it once."
            if tied
            else "the others were added in two places.",
        )

    def is_sum(self, name):
        came = self.replicas[0]["gradients"][name]
        parts = [own[name] for own in self.gradients if own[name] is not None]
        return came is not None and same(came.value, sum(parts))

    def unchanged(self, name, what, parts, total):
        """Replica 0 has what it had: was the sum skipped, thrown away, or put elsewhere?"""
        missing = [i for i in range(self.n) if i not in parts]
        if missing:
            return self.wrong(
                "skipped_when_one_is_missing",
                name,
                f"{what} is replica 0's own; {numbered('replica', missing)}"
                f" {'has' if len(missing) == 1 else 'have'} none",
                "the parameter was skipped because one gradient is None. That one counts as zero.",
            )
        for i in range(1, self.n):
            there = self.replicas[i]["gradients"][name]
            if there is not None and alike(there.value, total):
                return self.wrong(
                    "in_the_wrong_replica",
                    name,
                    f"the sum is in replica {i}, and {what} is still replica 0's own",
                    "the optimizer holds the parameters of replicas[0]: the sum goes there.",
                )
        return self.wrong(
            "nothing_added",
            name,
            f"{what} is still replica 0's own",
            "the sum was computed, but never stored in .grad of replicas[0].",
        )

    def examine_grad_mode(self, gradients_off):
        if gradients_off:
            raise Wrong("sum_gradients.grad_mode_changed", **LEFT_OFF, where=self.where)

    def examine_weights(self, model):
        """Every replica still has the weights of ``model``."""
        for i, replica in enumerate(self.replicas):
            for name, right in model.named_parameters():
                came = replica["weights"][name].value
                if not same(came, right.detach()):
                    raise Wrong(
                        "sum_gradients.weights_changed",
                        expected="the weights stay as they are, only .grad changes",
                        came=f"in replica {i}, {name} {largest_difference(came, right.detach())}",
                        usually="something was added to the parameter, and not to its .grad.",
                        where=self.where,
                    )
