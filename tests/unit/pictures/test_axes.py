"""Curves and a roofline, read back from their SVG."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from multigpu.pictures import curves, roofline

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


def test_values_of_one_place_have_a_line_from_smallest_to_largest(picture):
    root = ElementTree.fromstring(picture.svg())
    named = root.iter("{http://www.w3.org/2000/svg}g")
    said = re.compile(r"sqrt\D*0\.65\D*2048")
    (group,) = [g for g in named if said.fullmatch(g.findtext("{*}title") or "")]
    spread = group.find("{*}line")
    assert float(spread.get("y1")) - float(spread.get("y2")) > 10


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


POINTS = {"product": (100.0, 5e10), "addition": (0.125, 1e9), "small": (4.0, 2e9)}


@pytest.fixture(scope="module")
def machine():
    return roofline(POINTS, flops_per_second=1e11, bytes_per_second=1e10, title="A machine")


def marks(svg):
    return [
        (float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)
    ]


def test_the_roof_rises_to_the_ridge_and_a_decade_is_as_wide_everywhere(machine):
    svg = machine.svg()
    product, small, addition = marks(svg)  # from the fastest
    (roof,) = polylines(svg)
    (x1, y1), (x2, y2), (x3, y3) = roof
    assert x1 < x2 < x3
    assert y1 > y2 == y3
    assert product[1] > y2  # below it
    decade = (product[0] - addition[0]) / 2.90309  # log10(100 / 0.125)
    assert small[0] - addition[0] == pytest.approx(decade * 1.50515, abs=0.5)  # log10(4 / 0.125)
    to_the_ridge = decade * 1.90309  # log10(10 / 0.125)
    assert roof[1][0] - addition[0] == pytest.approx(to_the_ridge, abs=0.5)


def test_text_and_description_give_the_share_of_the_roof(machine):
    assert "addition: 0.125 FLOPs per byte, 1 GFLOP/s, 80% of the roof." in machine.description
    rows = {line.split()[0]: line.split()[-1] for line in machine.lines[1:]}
    assert rows == {"product": "50%", "small": "5%", "addition": "80%"}


def test_a_point_that_no_logarithm_has_is_refused():
    with pytest.raises(ValueError, match="view: both must be above zero"):
        roofline({"view": (0.0, 1.0)}, flops_per_second=1, bytes_per_second=1, title="")
