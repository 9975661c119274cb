"""A roofline, read back from its SVG."""

import re

import pytest

from multigpu.pictures import roofline

POINTS = {"product": (100.0, 5e10), "addition": (0.125, 1e9), "small": (4.0, 2e9)}


@pytest.fixture(scope="module")
def picture():
    return roofline(POINTS, flops_per_second=1e11, bytes_per_second=1e10, title="A machine")


def corners(svg):
    (points,) = re.findall(r'<polyline points="([^"]+)"', svg)
    return [tuple(map(float, xy.split(","))) for xy in points.split()]


def marks(svg):
    return [
        (float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)
    ]


def test_the_roof_rises_to_the_ridge_and_is_flat_behind_it(picture):
    (x1, y1), (x2, y2), (x3, y3) = corners(picture.svg())
    assert x1 < x2 < x3
    assert y1 > y2 == y3


def test_a_decade_is_as_wide_everywhere_and_every_mark_is_below_the_roof(picture):
    svg = picture.svg()
    product, small, addition = marks(svg)  # from the fastest
    roof = corners(svg)
    assert product[1] > roof[1][1]
    decade = (product[0] - addition[0]) / 2.90309  # log10(100 / 0.125)
    assert small[0] - addition[0] == pytest.approx(decade * 1.50515, abs=0.5)  # log10(4 / 0.125)
    to_the_ridge = decade * 1.90309  # log10(10 / 0.125)
    assert roof[1][0] - addition[0] == pytest.approx(to_the_ridge, abs=0.5)


def test_text_and_description_give_the_share_of_the_roof(picture):
    assert "addition: 0.125 FLOPs per byte, 1 GFLOP/s, 80% of the roof." in picture.description
    rows = {line.split()[0]: line.split()[-1] for line in picture.lines[1:]}
    assert rows == {"product": "50%", "small": "5%", "addition": "80%"}


def test_a_point_that_no_logarithm_has_is_refused():
    with pytest.raises(ValueError, match="view: both must be above zero"):
        roofline({"view": (0.0, 1.0)}, flops_per_second=1, bytes_per_second=1, title="")
