"""Pictures of who holds which sums, and of who reads which row group."""

import re
from typing import NamedTuple

import pytest

from multigpu.pictures import row_groups
from multigpu.pictures.holdings import ChunksSent, added, chunks
from multigpu.pictures.palette import color


def held(*sets):
    return [frozenset(each) for each in sets]


def test_a_sum_is_written_with_the_ranks_in_it():
    assert added(frozenset([2, 0])) == "0+2"


def test_a_chunk_is_colored_by_the_ranks_in_its_sum_and_what_is_new_arrives():
    before = [held({0}), held({1})]
    after = [held({0}), held({0, 1})]
    svg = chunks(before, after, [ChunksSent(0, 1, 96, {0: frozenset([0])})]).svg()
    assert svg.count('class="arrives"') == 1
    assert f'fill="{color(0)}" class="arrives"' in svg
    assert ">all<" in svg, "a complete sum says so"


def test_it_can_be_read_in_letters_and_by_a_screen_reader():
    holds = [held({0}, {0}), held({1}, {0, 1})]
    picture = chunks(holds, holds, [ChunksSent(1, 0, 48, {1: frozenset([0, 1])})])
    assert re.search(r"rank 1\D*rank 0\D*\b1\D*0\+1\D*48 B", picture.text())
    assert re.search(r"rank 1\D*\b1, 0\+1\b", picture.description)


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
    assert svg.count(f'fill="{color(0)}"') == 3
    assert f'fill="{color(4)}"' not in svg


@pytest.mark.parametrize("wrong", [Rows(3, 0, 1), Rows(2, 0, 5), Rows(0, -1, 3)])
def test_rows_that_are_not_in_the_file_are_refused(wrong):
    with pytest.raises(ValueError, match="wrong, rank 1"):
        row_groups([10, 10, 4], {"wrong": [[], [wrong]]})
