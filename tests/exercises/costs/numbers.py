"""What the exercises about costs have in common: their results are numbers."""

import math

from multigpu.checking.comparing import Difference, Rule, told_apart
from multigpu.checking.encoding import describe

ROUNDING = 1e-9  # relative: sums of floats in another order


def near(right, unit):
    """Only this number, up to rounding: an integer or a float."""

    def examine(came):
        if type(came) not in (int, float):
            return Difference("wrong_type", f"{describe(came)} and not a number")
        if math.isclose(came, right, rel_tol=ROUNDING):
            return None
        there, due = (
            (f"{came:,}", f"{right:,}") if isinstance(right, int) else told_apart(came, right)
        )
        return Difference("wrong_values", f"{there} {unit} and not {due}")

    return Rule(examine)
