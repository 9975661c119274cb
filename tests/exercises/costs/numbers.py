"""What the exercises about costs have in common: their results are numbers."""

import math

from multigpu.checking.comparing import Difference, Rule, told_apart
from multigpu.checking.encoding import describe

ROUNDING = 1e-9  # relative: sums of floats in another order


def number(result):
    """A result as a float, so that 5 and 5.0 are the same; anything else as it is."""
    return float(result) if type(result) is int else result


def near(right, unit):
    """Only this number, up to rounding."""

    def examine(came):
        if not isinstance(came, float):
            return Difference("wrong_type", f"{describe(came)} and not a number")
        if math.isclose(came, right, rel_tol=ROUNDING):
            return None
        there, due = (
            (f"{came:,.12g}", f"{right:,}") if isinstance(right, int) else told_apart(came, right)
        )
        return Difference("wrong_values", f"{there} {unit} and not {due}")

    return Rule(examine)
