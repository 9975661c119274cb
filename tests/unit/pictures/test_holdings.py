"""Pictures of who holds which values and sums."""

import re
import xml.etree.ElementTree as ElementTree

from multigpu.pictures import holdings, palette
from multigpu.pictures.holdings import ChunksSent, chunks

SVG = "{http://www.w3.org/2000/svg}"


def nodes(picture, tag):
    return list(ElementTree.fromstring(picture.svg()).iter(f"{SVG}{tag}"))


def texts(picture):
    return [node.text for node in nodes(picture, "text")]


def fills(picture):
    return [node.get("fill") for node in nodes(picture, "rect")]


def test_a_sum_has_the_colors_of_all_whose_values_are_in_it():
    picture = holdings([[0], [1], [2]], [[{0, 2}], [1], [None]])
    assert "0+2" in texts(picture)
    assert fills(picture).count(palette.color(0)) == 3  # chip, before, sum
    assert fills(picture).count(palette.color(1)) == 3  # chip, before, after
    after = picture.description.partition("After")[2]
    assert re.search(r"rank 0\D*0\+2\b", after)
    assert re.search(r"rank 2\D*nothing", after)


def held(*sets):
    return [frozenset(each) for each in sets]


def test_a_chunk_is_colored_by_the_ranks_in_its_sum_and_what_is_new_arrives():
    before = [held({0}), held({1})]
    after = [held({0}), held({0, 1})]
    svg = chunks(before, after, [ChunksSent(0, 1, 96, {0: frozenset([0])})]).svg()
    assert svg.count('class="arrives"') == 1
    assert f'fill="{palette.color(0)}" class="arrives"' in svg
    assert ">all<" in svg, "a complete sum says so"


def test_it_can_be_read_in_letters_and_by_a_screen_reader():
    holds = [held({0}, {0}), held({1}, {0, 1})]
    picture = chunks(holds, holds, [ChunksSent(1, 0, 48, {1: frozenset([0, 1])})])
    assert re.search(r"rank 1\D*rank 0\D*\b1\D*0\+1\D*48 B", picture.text())
    assert re.search(r"rank 1\D*\b1, 0\+1\b", picture.description)
