"""The picture of who reads which row group."""

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
    assert "rank 0 reads row groups 0, 2: 14 rows" in picture.description
    assert "rank 4 reads nothing: 0 rows" in picture.text()
    svg = picture.svg()
    assert "rows per rank: 14 · 10<" in svg
    assert "rank 3: rows 2 to 4 of row group 2" in svg
    assert svg.count(f'fill="{colour(0)}"') == 3
    assert f'fill="{colour(4)}"' not in svg


@pytest.mark.parametrize("wrong", [Rows(3, 0, 1), Rows(2, 0, 5), Rows(0, -1, 3)])
def test_rows_that_are_not_in_the_file_are_refused(wrong):
    with pytest.raises(ValueError, match="wrong, rank 1"):
        row_groups([10, 10, 4], {"wrong": [[], [wrong]]})
