"""The way through a program: frames for processes, what travels is striped, names lead on."""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "_ext"))

from course.stations import Station, way

SVG = "{http://www.w3.org/2000/svg}"
STATIONS = [
    Station("Ask", "It asks.", ("ask.py",), "the judge", hands="a question"),
    Station("Send", "It sends.", ("send.py",), "the judge", hands="bytes", link="#send"),
    Station("Answer", "It answers.", ("answer.py",), "the ranks", ranks=2, shares="numbers"),
]


def drawn(stations):
    return ElementTree.fromstring(way(stations, title="A way").svg())


def test_stations_of_one_process_share_a_frame_and_ranks_have_their_colors():
    words = [node.text for node in drawn(STATIONS).iter(f"{SVG}text")]
    assert words.count("the judge") == words.count("the ranks") == 1
    assert [word for word in words if word.startswith("rank ")] == ["rank 0", "rank 1"]


def test_only_what_goes_to_another_process_is_striped():
    def striped(stations):
        paths = drawn(stations).iter(f"{SVG}path")
        return sum(path.get("stroke-dasharray") is not None for path in paths)

    assert striped(STATIONS) == 1
    assert striped(STATIONS[:2]) == 0


def test_a_picture_with_links_is_no_mere_image():
    assert [link.get("href") for link in drawn(STATIONS).iter(f"{SVG}a")] == ["#send"]
    assert drawn(STATIONS).get("role") == "group"
    assert drawn(STATIONS[:1]).get("role") == "img"


def test_who_cannot_see_it_is_told_all_of_it():
    picture = way(STATIONS, title="A way")
    for told in (picture.description, picture.text()):
        for part in ("Ask", "ask.py", "It asks.", "a question", "the ranks", "numbers"):
            assert part in told


def test_a_way_without_stations_is_refused():
    with pytest.raises(ValueError, match="station"):
        way([], title="Nowhere")
