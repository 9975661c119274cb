"""When tensors are the same, and how a difference is told."""

import re
from fractions import Fraction

import pytest
import torch

from multigpu.checking.comparing import (
    alike,
    factor_between,
    is_rounded,
    largest_difference,
    same,
)

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
