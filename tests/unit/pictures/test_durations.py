"""Bars of time, read back from their SVG."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from multigpu.pictures import palette
from multigpu.pictures.charts import BARS, BarGroup, Duration, durations

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*bars, **more):
    picture = durations([BarGroup("group", bars, **more)], title="Times")
    return picture, ElementTree.fromstring(picture.svg())


def widths(root, fill):
    return [float(r.get("width")) for r in root.iter(f"{SVG}rect") if r.get("fill") == fill]


def test_bars_are_as_long_as_their_times():
    _, root = drawn(Duration("a", 2.0), Duration("b", 1.0))
    long, short, *_ = widths(root, palette.HOST)
    assert long == pytest.approx(BARS)
    assert short == pytest.approx(BARS / 2)


def test_the_share_of_communication_is_striped():
    _, root = drawn(Duration("a", 1.0, communication=0.25))
    assert widths(root, palette.HOST)[0] == pytest.approx(0.75 * BARS)
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
    found = widths(ElementTree.fromstring(picture.svg()), palette.HOST)
    assert found[0] == found[1] == pytest.approx(BARS)


def test_the_spread_belongs_to_the_scale_and_is_told():
    picture, root = drawn(Duration("a", 1.0, low=0.5, high=1.25))
    assert widths(root, palette.HOST)[0] == pytest.approx(BARS / 1.25)
    assert re.search(r"\b500 ms\D*1\.25 s\b", picture.description)


def test_one_slow_round_does_not_squeeze_the_bars():
    picture, root = drawn(Duration("a", 1.0, low=0.5, high=100.0))
    assert widths(root, palette.HOST)[0] == pytest.approx(BARS / 1.3)
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
