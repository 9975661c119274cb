"""Numbers of attention: the results of one process, and what may differ from them."""

import math
from dataclasses import replace

import torch

from multigpu.checking import Returned
from multigpu.checking.comparing import Difference, ResultComparison, Rule, largest_difference
from multigpu.checking.declaration import sized

ROUNDINGS = 2.0**-6  # of the largest number: a few roundings to bfloat16
OF_DIFFERENCES = 2.0**-3  # where numbers that were rounded are subtracted from each other


def exact(name, right, none=None, size=0.0, roundings=ROUNDINGS):
    """A rule for a tensor; ``none`` says where it is minus infinity, and ``size`` is for ``sized``.

    In 16 bits an answer may round more than once, and in another order.
    """

    def examine(came):
        value = right if none is None else right.masked_fill(none, 0)
        form = ResultComparison("").difference(came, value, name)
        if form is not None and not form.of_numbers:
            return form
        there = came.value
        if none is not None:
            if not torch.equal(there == -math.inf, none):
                return Difference("wrong_values", f"{name} {largest_difference(there, right)}")
            came = replace(came, value=there.masked_fill(none, 0))
        if right.element_size() > 2:
            return ResultComparison("").difference(came, sized(size, value), name)
        apart = (came.value.double() - value.double()).abs().max()
        if apart <= roundings * value.double().abs().max():
            return None
        return Difference("wrong_values", f"{name} {largest_difference(came.value, value)}")

    return Rule(examine)


def both(out, lse):
    """A rule for a pair: the output, and log-sum-exps that may be minus infinity."""
    none = lse == -math.inf
    # A weight is exp of a difference of two lse, and a large lse has few digits after the point.
    size = float(lse.masked_fill(none, 0).abs().max()) / 16
    rules = exact("out", out, size=size), exact("lse", lse, none)

    def examine(came):
        if not isinstance(came, list | tuple) or len(came) != 2:
            return ResultComparison("tensor").difference(came, [out, lse])
        if not all(isinstance(each, Returned) for each in came):
            return ResultComparison("tensor").difference(list(came), [out, lse])
        found = [rule.examine(each) for rule, each in zip(rules, came, strict=True)]
        there = [each for each in found if each is not None]
        return min(there, key=lambda each: each.of_numbers, default=None)

    return Rule(examine)
