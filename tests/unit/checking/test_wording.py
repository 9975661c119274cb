"""Numbers read like words in a sentence."""

import re
from fractions import Fraction

import pytest

from multigpu.checking.verdicts import count, listed, numbered, times


def test_one_chunk_and_three_chunks():
    assert [count(n, "chunk") for n in (1, 3, 0)] == ["1 chunk", "3 chunks", "0 chunks"]


@pytest.mark.parametrize(
    ("items", "text"), [([], "none"), ([4], "4"), ([4, 4], "4 and 4"), ("abc", "a, b and c")]
)
def test_a_list_ends_in_and(items, text):
    assert listed(items) == text


def test_a_long_list_is_cut():
    assert re.findall(r"\b\w\b", listed("abcdef", most=4)) == ["a", "b", "4"]


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([9], "row 9"), ([3, 4, 9], "rows 3, 4 and 9"), ([3, 4, 5, 6], "rows 3 to 6")],
)
def test_numbered_things(numbers, text):
    assert numbered("row", numbers) == text


def test_factors():
    assert times(Fraction(3)) == "exactly 3×"
    assert times(Fraction(1, 3)) == "exactly 1/3 of"
