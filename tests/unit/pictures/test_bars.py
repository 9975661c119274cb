"""Bars of memory, of time and of rows, read back from their SVG."""

import re
import xml.etree.ElementTree as ElementTree
from typing import NamedTuple

import pytest

from multigpu.pictures import Stack, memory, palette, row_groups, stacks
from multigpu.pictures.bars import BARS, SHADES, WIDTH, BarGroup, Duration, durations

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


def bar(label, seconds, **more):
    return Duration(label=label, seconds=seconds, value=f"{seconds:g} s", **more)


def drawn(*bars, **more):
    picture = durations([BarGroup("group", bars, **more)], title="Times")
    return picture, ElementTree.fromstring(picture.svg())


def test_the_share_of_communication_is_striped():
    picture, root = drawn(bar("a", 1.0, communication=0.25))
    assert widths(picture, palette.HOST)[0] == pytest.approx(0.75 * BARS)
    stripes = next(e for e in root.iter(f"{SVG}line") if e.get("stroke-dasharray") == "5 3")
    assert float(stripes.get("x2")) - float(stripes.get("x1")) == pytest.approx(0.25 * BARS)


def test_a_square_for_each_device_in_its_color():
    _, root = drawn(bar("a", 1.0, devices=3))
    fills = [r.get("fill") for r in root.iter(f"{SVG}rect")]
    assert [fill for fill in fills if fill in palette.COLORS] == list(palette.COLORS[:3])


def test_bars_are_as_long_as_their_times_on_the_scale_of_their_group():
    slow, fast = [bar("a", 100.0), bar("b", 50.0)], [bar("c", 0.001)]
    picture = durations([BarGroup("slow", slow), BarGroup("fast", fast)], title="T")
    found = widths(picture, palette.HOST)[:3]
    assert found == pytest.approx([BARS, BARS / 2, BARS])


@pytest.mark.parametrize(("slowest", "scale"), [(1.25, 1.25), (100.0, 1.3)])
def test_the_spread_is_told_and_belongs_to_the_scale_unless_it_would_squeeze_the_bars(
    slowest, scale
):
    picture, root = drawn(bar("a", 1.0, spread=(0.5, slowest)))
    assert widths(picture, palette.HOST)[0] == pytest.approx(BARS / scale)
    assert max(float(e.get("x2")) for e in root.iter(f"{SVG}line")) == pytest.approx(BARS)
    assert re.search(rf"\b500 ms\D*{slowest:g} s\b", picture.description)


def test_the_text_has_every_bar_and_fits_a_terminal():
    note = "a note that is so long that it cannot possibly stand on one line of a terminal " * 2
    picture, _ = drawn(bar("dp on 2", 0.5, note="tin cans"), note=note, against=0.4)
    assert "dp on 2" in picture.text()
    assert "tin cans" in picture.text()
    assert all(len(line) <= 80 for line in picture.text().splitlines())


def texts(picture):
    return [node.text for node in ElementTree.fromstring(picture.svg()).iter(f"{SVG}text")]


def test_a_memory_bar_is_filled_against_its_limit():
    picture = memory([("cuda:0", 50, 100), ("cuda:1", 25, 100)])
    (half,), (quarter,) = widths(picture, palette.color(0)), widths(picture, palette.color(1))
    assert half == pytest.approx(2 * quarter, rel=0.01)
    assert any(re.fullmatch(r"50 B\D*100 B", words) for words in texts(picture))
    assert any("limit" in words for words in texts(picture))


def test_without_limits_the_fullest_bar_is_the_measure():
    picture = memory([("cuda:0", 50, None), ("cuda:1", 25, None)])
    (full,), (half,) = widths(picture, palette.color(0)), widths(picture, palette.color(1))
    assert full == pytest.approx(2 * half, rel=0.01)
    assert "50 B" in texts(picture)
    assert any("largest" in words for words in texts(picture))


def test_a_bar_never_leaves_its_frame_and_a_little_is_seen():
    picture = memory([("cuda:0", 300, 100), ("cuda:1", 1, 10**9), ("cuda:2", 0, 100)])
    assert widths(picture, palette.color(0)) <= widths(picture, "var(--band)")[:1]
    assert widths(picture, palette.color(1))[0] >= 1
    assert widths(picture, palette.color(2)) == []


def test_a_peak_is_drawn_behind_what_is_used_now():
    picture = memory([("cuda:0", 20, 100, 60)])
    peak, now = widths(picture, palette.color(0))
    assert peak == pytest.approx(3 * now, rel=0.02)
    assert any("pale" in words for words in texts(picture))
    for told in (picture.description, picture.text()):
        assert re.findall(r"\d+ B", told) == ["20 B", "100 B", "60 B"]


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
    assert svg.count(f'fill="{palette.color(0)}"') == 3
    assert f'fill="{palette.color(4)}"' not in svg
