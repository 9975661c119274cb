"""When tensors are the same, and how a difference is told."""

import math
import re
from fractions import Fraction

import pytest
import torch

from multigpu.checking.comparing import (
    Near,
    ResultComparison,
    alike,
    factor_between,
    is_rounded,
    largest_difference,
    same,
)
from multigpu.checking.declaration import sized
from multigpu.checking.encoding import Returned

VALUES = torch.tensor([[1.0, -2.0], [3.0, 0.5]], dtype=torch.float64)
ROUNDED = VALUES * (1 + 1e-7)  # as if it went through float32


def test_another_order_of_addition_is_the_same():
    assert same(VALUES + 1e-12, VALUES)
    assert not same(VALUES + 1e-5, VALUES)


@pytest.mark.parametrize("n", [3, 6, 7])
def test_a_share_in_float32_is_right_where_the_call_says_so(n):
    share = torch.tensor(1) / torch.tensor(n)
    assert share.dtype is torch.float32
    assert same(VALUES * share, VALUES / n, share_of=n)
    assert not same(VALUES * share, VALUES / n)


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_a_share_that_float32_holds_exactly_loses_nothing(n):
    assert same(VALUES * (torch.tensor(1) / torch.tensor(n)), VALUES / n)
    assert not same(ROUNDED / n, VALUES / n, share_of=n)


def test_what_went_through_float32_is_alike():
    assert alike(ROUNDED, VALUES)
    assert not alike(VALUES + 1e-5, VALUES)
    assert not alike(torch.tensor([2**53 + 1]), torch.tensor([2**53]))


def test_small_numbers_are_not_all_the_same():
    assert not same(torch.full((2,), 1e-8, dtype=torch.float64), torch.zeros(2).double())


@pytest.mark.parametrize("other", [VALUES.float(), VALUES[:1], VALUES.flatten()])
def test_type_and_shape_count(other):
    assert not same(other, VALUES)


@pytest.mark.parametrize("factor", [Fraction(2), Fraction(1, 3), Fraction(3, 4), Fraction(4)])
def test_a_constant_factor_is_found(factor):
    assert factor_between(VALUES * float(factor), VALUES) == factor


def test_a_factor_is_found_between_numbers_whose_squares_overflow():
    large = VALUES.float() * 1e25
    assert factor_between(2 * large, large) == 2
    assert factor_between(large, large * torch.inf) is None


@pytest.mark.parametrize(
    "came", [VALUES, VALUES + 1, VALUES * 0, -VALUES, VALUES * torch.nan, VALUES[:1], VALUES * 2j]
)
def test_nothing_else_is_called_a_factor(came):
    assert factor_between(came, VALUES) is None


def test_the_largest_difference_names_place_and_numbers():
    came = VALUES.clone()
    came[1, 0] = 7
    assert re.findall(r"\d+", largest_difference(came, VALUES)) == ["1", "0", "7", "3"]
    assert re.findall(r"\d+", largest_difference(torch.tensor(1), torch.tensor(2))) == ["1", "2"]
    assert re.findall(r"\(.*?\)", largest_difference(VALUES[0], VALUES)) == ["(2,)", "(2, 2)"]


@pytest.mark.parametrize("smaller", [torch.float32, torch.float16, torch.bfloat16])
def test_numbers_that_went_through_a_smaller_dtype_are_rounded(smaller):
    exact = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert is_rounded(exact.to(smaller).double(), exact)


def test_other_numbers_are_not_rounded():
    exact = torch.tensor([0.01, 0.5, 3.0])
    assert not is_rounded(exact * 1.1, exact)
    assert not is_rounded(exact + 0.05, exact)
    assert not is_rounded(torch.tensor([1, 2]), torch.tensor([1, 3]))


def difference(came, right):
    return ResultComparison("entry").difference(came, right)


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
    came = Returned(came, "cpu")
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
