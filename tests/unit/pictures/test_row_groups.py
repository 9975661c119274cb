"""The picture of who reads which row group."""

import re
from typing import NamedTuple

import pytest

from multigpu.pictures import row_groups
from multigpu.pictures.palette import colour


class Rows(NamedTuple):
    group: int
    start: int
    stop: int


DEALT = [[Rows(0, 0, 10), Rows(2, 0, 4)], [Rows(1, 0, 10)]]
CUT = [[Rows(0, 0, 10)], [Rows(1, 0, 10)], [Rows(2, 0, 2)], [Rows(2, 2, 4)], []]


def test_it_says_who_reads_what_and_how_much():
    picture = row_groups([10, 10, 4], {"dealt": DEALT, "cut": CUT})
    assert re.search(r"rank 0\D*\b0, 2\D*\b14 rows\b", picture.description)
    assert re.search(r"rank 4\D*\b0 rows\b", picture.text())
    svg = picture.svg()
    assert "14 · 10<" in svg
    assert re.search(r"rank 3\D*\b2\D+\b4\D+\b2<", svg)
    assert svg.count(f'fill="{colour(0)}"') == 3
    assert f'fill="{colour(4)}"' not in svg


@pytest.mark.parametrize("wrong", [Rows(3, 0, 1), Rows(2, 0, 5), Rows(0, -1, 3)])
def test_rows_that_are_not_in_the_file_are_refused(wrong):
    with pytest.raises(ValueError, match="wrong, rank 1"):
        row_groups([10, 10, 4], {"wrong": [[], [wrong]]})
