"""A schedule as lanes, read back from its SVG."""

import re
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest

from multigpu.pictures import palette, schedule

SVG = "{http://www.w3.org/2000/svg}"


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


def test_numbers_can_be_read_on_every_block():
    for rank in range(7):
        for strength in (0.4, 1.0):
            fill = palette.tint(palette.color(rank), strength)
            assert palette.contrast(palette.ink_on(fill), fill) > 4.5


def test_in_letters_every_unit_is_as_wide_as_the_next():
    lines = schedule(STEPS, seconds=False).text().splitlines()
    assert lines[2].split() == ["rank", "0", "0" + 15 * "░" + 48 * "·"]
    assert lines[3].split() == ["rank", "1", 16 * "·" + "0" + 15 * "░" + "0" + 31 * "█"]
    assert re.search(r"\b0\D*4\b", lines[4])


def test_a_second_stage_of_a_rank_is_marked_and_told():
    picture = schedule([*STEPS, step(0, "forward", 0, 4, 5, stage=2)])
    assert ">0\u2032</text>" in picture.svg()
    last = picture.description.rpartition(". ")[2]
    assert re.search(r"rank 0\D*stage 2\D*forward 0\b", last)
    assert re.findall(r"[\d.]+ s", last) == ["4.00 s", "5.00 s"]
