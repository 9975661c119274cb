"""Bars in parts, read back from their SVG."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from multigpu.pictures import Stack, palette, stacks
from multigpu.pictures.charts import SHADES, WIDTH

SVG = "{http://www.w3.org/2000/svg}"


def widths(picture, fill):
    root = ElementTree.fromstring(picture.svg())
    return [float(r.get("width")) for r in root.iter(f"{SVG}rect") if r.get("fill") == fill]


def test_parts_are_as_long_as_their_bytes_and_have_one_shade_each():
    bars = [Stack("a", {"weights": 300, "state": 100}), Stack("b", {"weights": 100})]
    picture = stacks(bars)
    assert widths(picture, palette.tint(palette.HOST, SHADES[0]))[:2] == [0.75 * WIDTH, 105]
    assert widths(picture, palette.tint(palette.HOST, SHADES[1]))[0] == 105


def test_the_limit_belongs_to_the_scale_and_what_is_above_it_is_told():
    picture = stacks([Stack("a", {"x": 200}), Stack("b", {"x": 50})], limit=100)
    assert re.search(r"a: 200 B\D*limit", picture.description)
    assert re.search(r"b: 50 B\W*x 50 B", picture.description)
    assert picture.description.count("limit") == 1
    lines = picture.text().splitlines()
    assert lines[2].split()[1] == 18 * "█" + "|" + 17 * "█"
    assert lines[3].split()[1] == 9 * "█" + 9 * "·" + "|" + 17 * "·"


def test_what_was_expected_is_a_dashed_line():
    picture = stacks([Stack("a", {"x": 100}, expected=50)], expected="the formula")
    root = ElementTree.fromstring(picture.svg())
    (dashed,) = [e for e in root.iter(f"{SVG}line") if e.get("stroke-dasharray") == "3 2"]
    assert float(dashed.get("x1")) == WIDTH / 2
    assert "the formula 50 B" in picture.text()


def test_the_memory_of_a_rank_has_its_colour_and_names_can_be_read():
    picture = stacks([Stack("a", {"x": 1})], rank=1)
    assert widths(picture, palette.colour(1))
    for rank in range(7):
        for shade in SHADES:
            fill = palette.tint(palette.colour(rank), shade)
            assert palette.contrast(palette.ink_on(fill), fill) > 4.5


@pytest.mark.parametrize(
    ("parts", "said"),
    [({"x": -1}, "a: .*'x': -1"), (dict.fromkeys("abcde", 1), r"\b5 parts\b.*\b4\b")],
)
def test_what_cannot_be_drawn_is_refused(parts, said):
    with pytest.raises(ValueError, match=said):
        stacks([Stack("a", parts)])
