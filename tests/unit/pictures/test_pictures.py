"""The pictures, read back from their SVG: who is drawn, what is said, and what it looks like."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

import pytest

from multigpu.pictures import Step, memory, palette, steps, timeline, traffic

SVG = "{http://www.w3.org/2000/svg}"


@dataclass
class Copy:
    source: str
    target: str
    bytes: int


FAN = [Copy("cpu", f"cuda:{i}", 100 * (i + 1)) for i in range(4)]
EVERY_PICTURE = {
    "traffic": traffic(FAN),
    "no traffic": traffic([]),
    "steps": steps([Step("1 split", FAN), Step("2 forward", work={"cuda:1": "8 rows"})]),
    "memory": memory([("cuda:0", 5, 10), ("cuda:1", 3, 10)]),
    "no memory": memory([]),
    "timeline": timeline([("rank 0", "forward", 0.0, 0.5, "compute")]),
    "no time": timeline([]),
}


def texts(picture):
    return [node.text for node in ElementTree.fromstring(picture.svg()).iter(f"{SVG}text")]


def arrowheads(picture):
    """The color and the x of each arrow's tip."""
    paths = ElementTree.fromstring(picture.svg()).iter(f"{SVG}path")
    return [(path.get("fill"), float(path.get("d")[1:].split()[0])) for path in paths]


@pytest.mark.parametrize("picture", EVERY_PICTURE.values(), ids=EVERY_PICTURE.keys())
def test_every_picture_is_an_image_with_a_name_and_a_description(picture):
    root = ElementTree.fromstring(picture.svg())
    assert root.get("role") == "img"
    assert root.find(f"{SVG}title").text == picture.title
    assert root.find(f"{SVG}desc").text


@pytest.mark.parametrize("picture", EVERY_PICTURE.values(), ids=EVERY_PICTURE.keys())
def test_many_pictures_can_stand_on_one_page(picture):
    """No ids at all, so none can clash; a scalable size; nothing from outside."""
    root = ElementTree.fromstring(picture.svg())
    assert not [node for node in root.iter() if node.get("id")]
    assert root.get("viewBox")
    assert "max-width:100%" in root.get("style")
    assert "url(" not in picture.svg()
    assert "href" not in picture.svg()


def test_a_notebook_shows_the_svg_and_a_terminal_the_text():
    picture = traffic(FAN)
    assert picture._repr_html_() == picture.svg()
    written = []

    class Printer:
        text = written.append

    picture._repr_pretty_(Printer(), cycle=False)
    assert written == [picture.text()]


def test_copies_on_one_link_are_added():
    picture = traffic([Copy("cuda:0", "cuda:1", 100), Copy("cuda:0", "cuda:1", 23)])
    assert "123 B" in texts(picture)
    assert re.search(r"cuda:0\D*cuda:1\D*123 B\D*2 copies", picture.description)
    assert re.search(r"\b123 B\D*2 copies", picture.text())


def test_the_description_is_exact_where_the_drawing_rounds():
    picture = traffic([Copy("cpu", "cuda:0", 24_360)])
    assert "23.8 KiB" in texts(picture)
    assert "24,360 B" in picture.description


def test_an_arrow_has_the_senders_color_and_ends_at_the_receiver():
    towards_1, back = arrowheads(
        traffic([Copy("cuda:0", "cuda:1", 8), Copy("cuda:1", "cuda:0", 8)])
    )
    assert towards_1[0] == palette.color(0)
    assert back[0] == palette.color(1)
    assert towards_1[1] > back[1]  # cuda:1 stands right of cuda:0


def test_columns_are_the_cpu_and_then_the_devices_in_the_order_given():
    columns = texts(traffic([Copy("cuda:1", "cpu", 1)], devices=["cuda:2", "cuda:1", "cuda:0"]))
    assert columns[1:5] == ["cpu", "cuda:2", "cuda:1", "cuda:0"]


def test_the_order_of_the_copies_does_not_change_the_picture():
    assert traffic(FAN).svg() == traffic(reversed(FAN)).svg()


def test_ten_devices_are_in_the_order_of_their_numbers():
    columns = texts(traffic([Copy(f"cuda:{i}", "cpu", 1) for i in (10, 9, 2)]))
    assert columns[1:5] == ["cpu", "cuda:2", "cuda:9", "cuda:10"]


def test_a_copy_inside_one_device_is_no_traffic():
    picture = traffic([Copy("cuda:0", "cuda:0", 8)])
    assert any("nothing" in words for words in texts(picture))
    assert "nothing" in picture.text()


def test_names_are_written_as_text_and_never_as_markup():
    picture = traffic([Copy("<cpu>", "a&b", 8)], title='<b>"bold"</b>')
    assert "<cpu>" in texts(picture)
    assert picture.title == '<b>"bold"</b>'
    assert "<b>" not in picture.svg()


def test_a_step_shows_its_movements_in_order_with_their_bytes_and_their_work():
    movements = [
        Step("1 split", FAN),
        Step("2 forward", work={"cuda:0": "4 rows", "cuda:1": "3 rows"}),
        Step("3 gather", [Copy("cuda:1", "cuda:0", 120)]),
    ]
    said = texts(steps(movements))
    order = [said.index(name) for name in ("1 split", "2 forward", "3 gather")]
    assert order == sorted(order)
    assert said[order[0] + 1] == "1,000 B"  # all that moved in it
    assert "nothing" in said[order[1] + 1]
    assert said[order[1] + 2 : order[1] + 4] == ["4 rows", "3 rows"]
    assert "120 B" in said


def widths(picture, color):
    rectangles = ElementTree.fromstring(picture.svg()).iter(f"{SVG}rect")
    return [float(r.get("width")) for r in rectangles if r.get("fill") == color]


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


STEP = [
    ("rank 0", "forward", 10.0, 14.0, "compute"),
    ("rank 0", "all_reduce", 14.0, 18.0, "communication"),
    ("rank 1", "forward", 11.0, 14.0, "compute"),
]


def test_compute_is_solid_and_communication_striped():
    root = ElementTree.fromstring(timeline(STEP).svg())
    solid = [r for r in root.iter(f"{SVG}rect") if r.get("fill") == palette.color(0)]
    striped = [
        stroke
        for stroke in root.iter(f"{SVG}line")
        if stroke.get("stroke") == palette.color(0) and stroke.get("stroke-dasharray")
    ]
    assert len(solid) == len(striped) == 1
    long = float(striped[0].get("x2")) - float(striped[0].get("x1"))
    assert float(solid[0].get("width")) == pytest.approx(long, abs=0.1)  # both took four seconds


def test_time_begins_with_the_first_span():
    assert "0 s" in texts(timeline(STEP))
    first, *_ = timeline(STEP).description.split(". ")
    assert first.startswith("rank 0: forward ")
    assert re.findall(r"[\d.]+ s", first) == ["4.00 s", "0 s", "4.00 s"]


def test_a_timeline_in_letters_keeps_lanes_and_kinds_apart():
    rank_0, rank_1 = timeline(STEP).text().splitlines()[2:4]
    assert "█" in rank_0
    assert "▒" in rank_0
    assert "█" in rank_1
    assert "▒" not in rank_1


def test_another_kind_is_refused_by_name():
    with pytest.raises(ValueError, match=r"rank 0.*'sleep'"):
        timeline([("rank 0", "x", 0.0, 1.0, "sleep")])


def test_drawing_needs_no_torch():
    code = "import sys, multigpu.pictures; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
