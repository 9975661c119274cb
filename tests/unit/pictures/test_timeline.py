"""Timelines and schedules, read back from their SVG."""

import re
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest

from multigpu.pictures import palette, schedule, timeline

SVG = "{http://www.w3.org/2000/svg}"


def nodes(picture, tag):
    return list(ElementTree.fromstring(picture.svg()).iter(f"{SVG}{tag}"))


def texts(picture):
    return [node.text for node in nodes(picture, "text")]


STEP = [
    ("rank 0", "forward", 10.0, 14.0, "compute"),
    ("rank 0", "all_reduce", 14.0, 18.0, "communication"),
    ("rank 1", "forward", 11.0, 14.0, "compute"),
]
WAITS = [
    ("rank 0", "all_reduce waits", 0.0, 0.6, "waiting"),
    ("rank 0", "all_reduce", 0.6, 1.0, "communication"),
    ("rank 1", "forward", 0.0, 0.6, "compute"),
    ("rank 1", "all_reduce", 0.6, 1.0, "communication"),
]
OVERLAP = [
    ("rank 0", "backward", 0.0, 1.0, "compute"),
    ("rank 0", "first", 0.2, 0.7, "communication"),
    ("rank 0", "second", 0.4, 0.9, "communication"),
    ("rank 0", "third", 0.7, 1.0, "communication"),
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


def test_waiting_is_a_thin_line_and_has_its_entry_in_the_legend():
    picture = timeline(WAITS)
    assert "waiting" in texts(picture)
    thin = [n for n in nodes(picture, "line") if n.get("stroke") == palette.color(0)]
    assert "2.5" in {node.get("stroke-width") for node in thin}
    assert "──" in picture.text()
    assert "waiting" in picture.text()
    assert "waiting" not in timeline(WAITS[2:]).text()


def test_what_happens_at_the_same_time_is_drawn_in_tracks():
    first, second, third, axis = timeline(OVERLAP).text().splitlines()[2:]
    assert "█" in first
    assert "▒" not in first
    assert "▒" in second
    assert "▒" in third
    assert re.search(r"\b0\D*1\.00 s\b", axis)
    assert timeline(OVERLAP).height > timeline(OVERLAP[:1]).height


def test_waiting_and_what_it_was_for_share_a_track():
    compute = ("rank 0", "backward", 0.0, 0.5, "compute")
    waiting = ("rank 0", "all_reduce waits", 0.4, 0.6, "waiting")
    talking = ("rank 0", "all_reduce", 0.6, 1.0, "communication")
    first, second = timeline([compute, waiting, talking]).text().splitlines()[2:4]
    assert "▒" not in first
    assert "─▒" in second


def test_more_than_fits_is_drawn_as_one_bar_with_its_number():
    crowd = [("rank 0", "all_reduce", 0.1 * i, 2.0, "communication") for i in range(10)]
    picture = timeline(crowd)
    assert "7 × all_reduce" in texts(picture)
    assert texts(picture).count("all_reduce") == 3
    assert len(picture.text().splitlines()) == 2 + 4 + 1


def test_a_picture_of_very_many_spans_stays_small():
    many = [
        ("rank 0", "all_reduce", i * 0.001, i * 0.001 + 0.0009, "communication")
        for i in range(5000)
    ]
    many += [("rank 0", "backward", 10.0, 12.0, "compute")]
    picture = timeline(many)
    assert len(picture.svg()) < 20_000
    assert "5000 × all_reduce" in texts(picture)
    assert "backward" in texts(picture)


def test_lanes_can_be_named_so_that_an_idle_one_is_seen():
    rows = timeline(WAITS[2:], ["rank 0", "rank 1", "rank 2"]).text().splitlines()[2:5]
    assert [row.split()[0] + row.split()[1] for row in rows] == ["rank0", "rank1", "rank2"]
    assert set(rows[2].split()[2]) == {"·"}


def step(rank, kind, micro_batch, start, end, **more):
    return SimpleNamespace(
        rank=rank, kind=kind, micro_batch=micro_batch, start=start, end=end, **more
    )


STEPS = [step(0, "forward", 0, 0, 1), step(1, "forward", 0, 1, 2), step(1, "backward", 0, 2, 4)]


def blocks(picture, fill):
    root = ElementTree.fromstring(picture.svg())
    return [float(r.get("width")) for r in root.iter(f"{SVG}rect") if r.get("fill") == fill]


def test_forward_is_pale_and_backward_full_in_the_color_of_the_rank():
    picture = schedule(STEPS)
    orange = palette.color(1)
    (pale,) = blocks(picture, palette.tint(orange, 0.4))
    (full,) = blocks(picture, orange)
    assert full == pytest.approx(2 * pale, abs=2)
    assert blocks(picture, palette.color(0)) == []


def test_a_second_stage_of_a_rank_is_marked_and_told():
    picture = schedule([*STEPS, step(0, "forward", 0, 4, 5, stage=2)])
    assert ">0\u2032</text>" in picture.svg()
    last = picture.description.rpartition(". ")[2]
    assert re.search(r"rank 0\D*stage 2\D*forward 0\b", last)
    assert re.findall(r"[\d.]+ s", last) == ["4.00 s", "5.00 s"]
