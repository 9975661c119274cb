"""What the first difference between a result and the right one is called."""

import math

import pytest
import torch

from multigpu.checking.comparing import Comparison, Near
from multigpu.checking.declaration import sized
from multigpu.checking.encoding import Returned


def difference(came, right):
    return Comparison("entry").difference(came, right)


@pytest.mark.parametrize(("came", "right"), [(2.0000001, 2.0), (math.nan, math.nan), (1e-12, 0.0)])
def test_a_number_is_right_in_so_many_digits(came, right):
    assert difference(came, Near(right, digits=5)) is None


@pytest.mark.parametrize(
    ("came", "right", "kind"),
    [
        (2.001, 2.0, "wrong_value"),
        (2.0, math.nan, "wrong_value"),
        (math.nan, 2.0, "wrong_value"),
        (2, 2.0, "wrong_type"),
        (None, 2.0, "returned_nothing"),
    ],
)
def test_a_wrong_number_is_told(came, right, kind):
    assert difference(came, Near(right, digits=5)).kind == kind


def test_what_is_left_of_larger_numbers_is_rounded_like_these():
    came, right = (torch.tensor(x, dtype=torch.float64) for x in (1e-6, 1.0001e-6))
    came = Returned(came, "cpu", False, True, False)
    assert difference(came, right) is not None
    assert difference(came, sized(1.0, right)) is None


@pytest.mark.parametrize(
    ("came", "kind", "words"),
    [
        ([0, 2, 5], "wrong_value", "the result is [0, 2, 5] and not [0, 2, 4]"),
        ([0, 2], "wrong_count", "the result is [0, 2] and not [0, 2, 4]"),
        ((0, 2, 4), "wrong_type", "the result is a tuple of 3 values and not a list"),
        ([0, 2, 4.0], "wrong_type", "the result has the number 4.0 in it and not an integer"),
    ],
)
def test_a_list_of_integers_is_shown_as_a_whole(came, kind, words):
    found = difference(came, [0, 2, 4])
    assert (found.kind, found.came) == (kind, words)
