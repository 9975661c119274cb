"""Curves, read back from their SVG."""

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest

from multigpu.pictures import curves
from multigpu.pictures.palette import COLORS

SERIES = {
    "none": {128: [0.5], 512: [0.7], 2048: [0.6]},
    "sqrt": {2048: [0.6, 0.7], 128: [0.4, 0.4]},
    "linear": {128: [0.3], 512: [0.7], 2048: [0.2]},
}


@pytest.fixture(scope="module")
def picture():
    return curves(SERIES, title="Batches", along="batch size", figure="recall@10", digits=2)


def polylines(svg):
    found = re.findall(r'<polyline points="([^"]+)"', svg)
    return [[tuple(map(float, xy.split(","))) for xy in points.split()] for points in found]


def test_the_text_is_a_table_of_the_means(picture):
    head, *rows = (line.split() for line in picture.lines)
    assert head[-3:] == ["128", "512", "2048"]
    assert rows == [
        ["none", "0.50", "0.70", "0.60"],
        ["sqrt", "0.40", "0.65"],
        ["linear", "0.30", "0.70", "0.20"],
    ]
    assert re.search(r"sqrt\D*0\.40\D*128\D*0\.65\D*2048\b", picture.description)


def test_a_line_rises_where_its_values_do_and_places_are_equally_far_apart(picture):
    none, sqrt, linear = polylines(picture.svg())
    assert [len(none), len(sqrt), len(linear)] == [3, 2, 3]
    (x1, y1), (x2, y2), (x3, y3) = none
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert y2 < y3 < y1  # SVG counts downwards
    assert (y1 - y2) / (y1 - y3) == pytest.approx(2, abs=0.05)
    assert sqrt[0][0] == x1
    assert sqrt[1][0] == x3
    assert linear[1] == none[1]


def test_lines_differ_without_color(picture):
    svg = picture.svg()
    dashes = re.findall(r'<polyline [^>]*?(?:stroke-dasharray="([^"]*)")?[^>]*>', svg)
    assert len(set(re.findall(r'stroke-dasharray="([^"]*)"', svg))) == 2
    assert len(dashes) == 3
    assert not [color for color in COLORS if color in svg]


def test_values_of_one_place_have_a_line_from_smallest_to_largest(picture):
    root = ElementTree.fromstring(picture.svg())
    named = root.iter("{http://www.w3.org/2000/svg}g")
    said = re.compile(r"sqrt\D*0\.65\D*2048")
    (group,) = [g for g in named if said.fullmatch(g.findtext("{*}title") or "")]
    spread = group.find("{*}line")
    assert float(spread.get("y1")) - float(spread.get("y2")) > 10


def test_names_do_not_lie_on_each_other():
    same = {name: {1: [0.5], 2: [0.5]} for name in ("a", "b", "c", "d")}
    svg = curves(same, title="", along="x", figure="y").svg()
    heights = [float(re.search(rf'y="([\d.]+)"[^>]*>{name}<', svg)[1]) for name in same]
    assert min(b - a for a, b in pairwise(heights)) >= 14


@pytest.mark.parametrize("wrong", [{}, {"a": {}}, {"a": {1: []}}])
def test_a_curve_without_values_is_refused(wrong):
    with pytest.raises(ValueError, match="value"):
        curves(wrong, title="", along="x", figure="y")


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.79, 0.82], ["0.79", "0.80", "0.81", "0.82"]),
        ([3, 11], ["2", "4", "6", "8", "10", "12"]),
        ([5, 5], ["4.5", "5.0", "5.5"]),
    ],
)
def test_ticks_are_round_and_of_one_length(values, ticks):
    svg = curves({"a": {1: values}}, title="", along="x", figure="y").svg()
    found = re.findall(r'text-anchor="end"[^>]*>([\d.]+)<', svg)
    assert found == ticks
