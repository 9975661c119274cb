"""The picture of one step of an all-reduce."""

import re

from multigpu.pictures.holdings import PartSent, added, parts
from multigpu.pictures.palette import colour


def held(*sets):
    return [frozenset(each) for each in sets]


def test_a_sum_is_written_with_the_ranks_in_it():
    assert added(frozenset([2, 0])) == "0+2"


def test_a_part_is_coloured_by_the_ranks_in_its_sum_and_what_is_new_arrives():
    before = [held({0}), held({1})]
    after = [held({0}), held({0, 1})]
    svg = parts(before, after, [PartSent(0, 1, 96, {0: frozenset([0])})]).svg()
    assert svg.count('class="arrives"') == 1
    assert f'fill="{colour(0)}" class="arrives"' in svg
    assert ">all<" in svg, "a complete sum says so"


def test_it_can_be_read_in_letters_and_by_a_screen_reader():
    holds = [held({0}, {0}), held({1}, {0, 1})]
    picture = parts(holds, holds, [PartSent(1, 0, 48, {1: frozenset([0, 1])})])
    assert re.search(r"rank 1\D*rank 0\D*\b1\D*0\+1\D*48 B", picture.text())
    assert re.search(r"rank 1\D*\b1, 0\+1\b", picture.description)
