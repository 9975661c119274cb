"""Bars of memory and of time, and curves, read back from their SVG."""

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest

from multigpu.pictures import Stack, curves, palette, stacks
from multigpu.pictures.charts import BARS, SHADES, WIDTH, BarGroup, Duration, durations
from multigpu.pictures.palette import COLOURS

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


def drawn(*bars, **more):
    picture = durations([BarGroup("group", bars, **more)], title="Times")
    return picture, ElementTree.fromstring(picture.svg())


def widths_of_durations(root, fill):
    return [float(r.get("width")) for r in root.iter(f"{SVG}rect") if r.get("fill") == fill]


def test_bars_are_as_long_as_their_times():
    _, root = drawn(Duration("a", 2.0), Duration("b", 1.0))
    long, short, *_ = widths_of_durations(root, palette.HOST)
    assert long == pytest.approx(BARS)
    assert short == pytest.approx(BARS / 2)


def test_the_share_of_communication_is_striped():
    _, root = drawn(Duration("a", 1.0, communication=0.25))
    assert widths_of_durations(root, palette.HOST)[0] == pytest.approx(0.75 * BARS)
    stripes = next(e for e in root.iter(f"{SVG}line") if e.get("stroke-dasharray") == "5 3")
    assert float(stripes.get("x2")) - float(stripes.get("x1")) == pytest.approx(0.25 * BARS)


def test_a_square_for_each_device_in_its_colour():
    _, root = drawn(Duration("a", 1.0, devices=3))
    fills = [r.get("fill") for r in root.iter(f"{SVG}rect")]
    assert [fill for fill in fills if fill in palette.COLOURS] == list(palette.COLOURS[:3])


def test_each_group_has_its_own_scale():
    picture = durations(
        [BarGroup("slow", [Duration("a", 100.0)]), BarGroup("fast", [Duration("b", 0.001)])],
        title="T",
    )
    found = widths_of_durations(ElementTree.fromstring(picture.svg()), palette.HOST)
    assert found[0] == found[1] == pytest.approx(BARS)


def test_the_spread_belongs_to_the_scale_and_is_told():
    picture, root = drawn(Duration("a", 1.0, low=0.5, high=1.25))
    assert widths_of_durations(root, palette.HOST)[0] == pytest.approx(BARS / 1.25)
    assert re.search(r"\b500 ms\D*1\.25 s\b", picture.description)


def test_one_slow_round_does_not_squeeze_the_bars():
    picture, root = drawn(Duration("a", 1.0, low=0.5, high=100.0))
    assert widths_of_durations(root, palette.HOST)[0] == pytest.approx(BARS / 1.3)
    assert max(float(e.get("x2")) for e in root.iter(f"{SVG}line")) == pytest.approx(BARS)
    assert re.search(r"\b500 ms\D*100 s\b", picture.description)


def test_the_text_has_every_bar_and_fits_a_terminal():
    note = "a note that is so long that it cannot possibly stand on one line of a terminal " * 2
    picture, _ = drawn(Duration("dp on 2", 0.5, note="tin cans"), note=note, against=0.4)
    assert "dp on 2" in picture.text()
    assert "tin cans" in picture.text()
    assert all(len(line) <= 80 for line in picture.text().splitlines())


def test_no_bars_are_a_picture_too():
    assert durations([], title="Nothing").svg()
    assert durations([BarGroup("empty", [])], title="Nothing").text()


@pytest.mark.parametrize("bar", [Duration("x", -1.0), Duration("x", 1.0, communication=1.5)])
def test_nonsense_is_refused_by_name(bar):
    with pytest.raises(ValueError, match=r"^x: "):
        durations([BarGroup("group", [bar])], title="")


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


def test_lines_differ_without_colour(picture):
    svg = picture.svg()
    dashes = re.findall(r'<polyline [^>]*?(?:stroke-dasharray="([^"]*)")?[^>]*>', svg)
    assert len(set(re.findall(r'stroke-dasharray="([^"]*)"', svg))) == 2
    assert len(dashes) == 3
    assert not [colour for colour in COLOURS if colour in svg]


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
