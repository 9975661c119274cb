"""What all pictures share: SVG and text, slides, tables, colors, units."""

import importlib.util
import itertools
import re
import xml.etree.ElementTree as ElementTree
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from bs4 import BeautifulSoup
from IPython.lib import pretty

from multigpu.pictures import (
    Slide,
    Slides,
    Step,
    Table,
    memory,
    palette,
    steps,
    timeline,
    traffic,
)
from multigpu.pictures.bars import SHADES
from multigpu.pictures.units import exact_bytes, human_bytes, human_count, human_seconds

DOCS = Path(__file__).resolve().parents[3] / "docs"
SVG = "{http://www.w3.org/2000/svg}"
FAN = [SimpleNamespace(source="cpu", target=f"cuda:{i}", bytes=100 * (i + 1)) for i in range(4)]
EVERY_PICTURE = {
    "traffic": traffic(FAN),
    "no traffic": traffic([]),
    "steps": steps([Step("1 split", FAN), Step("2 forward", work={"cuda:1": "8 rows"})]),
    "memory": memory([("cuda:0", 5, 10), ("cuda:1", 3, 10)]),
    "no memory": memory([]),
    "timeline": timeline([("rank 0", "forward", 0.0, 0.5, "compute")]),
    "no time": timeline([]),
}


@pytest.mark.parametrize("picture", EVERY_PICTURE.values(), ids=EVERY_PICTURE.keys())
def test_every_picture_has_a_name_and_a_description_and_can_stand_beside_others(picture):
    """No ids at all, so none can clash; a scalable size; nothing from outside."""
    root = ElementTree.fromstring(picture.svg())
    assert root.get("role") == "img"
    assert root.find(f"{SVG}title").text == picture.title
    assert root.find(f"{SVG}desc").text
    assert not [node for node in root.iter() if node.get("id")]
    assert root.get("viewBox")
    assert "max-width:100%" in root.get("style")
    assert "url(" not in picture.svg()
    assert "href" not in picture.svg()


def test_the_stored_picture_is_the_recorded_run():
    spec = importlib.util.spec_from_file_location("draw_readme", DOCS / "draw_readme.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    stored = (DOCS / "_static" / "readme.svg").read_text(encoding="utf-8")
    assert stored == script.draw().svg() + "\n", "draw it again: python docs/draw_readme.py"


def test_a_table_is_html_in_a_notebook_and_letters_in_a_terminal():
    table = Table("T", ("call", "took"), (("<send>", "1 ms"),), numbers=frozenset({"took"}))
    root = ElementTree.fromstring(table.html())
    assert [cell.text for cell in root.iter("td")] == ["<send>", "1 ms"]
    assert str(table).splitlines() == ["T", "", "call    took", "──────  ────", "<send>  1 ms"]


PICTURE = memory([("cuda:0", 5, None)])
SLIDES = Slides("Two <steps>", [Slide("one", PICTURE, "a < b"), Slide("two", PICTURE)])


@pytest.mark.parametrize("shown", [PICTURE, SLIDES, Table("T", ("call",), (("send",),))])
def test_a_notebook_shows_the_html_and_a_terminal_the_text(shown):
    printed = StringIO()
    pretty.RepresentationPrinter(printed).pretty(shown)
    assert printed.getvalue() == str(shown) == shown.text()
    notebook, html = (re.sub("steps-[0-9a-f]+", "", h) for h in (shown._repr_html_(), shown.html()))
    assert notebook == html  # but for the ids, which are new each time


def test_each_step_has_a_button_and_a_rule_that_shows_it():
    page = BeautifulSoup(SLIDES.html(), "html.parser")
    (group,) = page.select("fieldset")
    buttons = group.select("input[type=radio]")
    assert [label.text for label in group.select("label")] == ["one", "two"]
    assert [label["for"] for label in group.select("label")] == [b["id"] for b in buttons]
    assert len({button["name"] for button in buttons}) == 1
    assert [button.has_attr("checked") for button in buttons] == [True, False]
    # JupyterLab looks for it on the element that has the focus.
    assert all(button["data-lm-suppress-shortcuts"] == "true" for button in buttons)
    style = page.select_one("style").text
    assert re.findall(r"nth-of-type\((\d)\):checked", style) == ["1", "2"]
    assert f"#{group['id']} " in style
    assert "#ID" not in style

    assert "a < b" in page.text  # words are no markup


def test_two_slides_on_one_page_do_not_disturb_each_other():
    ids = [set(re.findall(r'id="(steps-[\w-]+)"', SLIDES.html())) for _ in range(2)]
    assert not ids[0] & ids[1]


def test_a_gpu_and_a_rank_of_the_same_number_share_a_color_that_no_other_has():
    for name in ("cuda:2", "GPU 2", "rank 2", "cuda:2, peak"):
        assert palette.color_of(name) == palette.color(2)
    assert palette.color_of("cpu") == palette.color_of("host") == palette.HOST
    assert len({palette.HOST, *(palette.color(i) for i in range(7))}) == 8


@pytest.mark.parametrize("color", [*palette.COLORS, palette.HOST])
def test_names_on_a_color_can_be_read(color):
    for strength in (1.0, 0.4, *SHADES):
        fill = palette.tint(color, strength)
        assert palette.contrast(palette.ink_on(fill), fill) >= 4.5


@pytest.mark.parametrize(
    ("sheet", "ground", "voice"),
    [*itertools.product((palette.LIGHT, palette.DARK), ("paper", "band"), ("ink", "muted"))],
)
def test_text_can_be_read_on_light_and_on_dark_paper(sheet, ground, voice):
    assert palette.contrast(sheet[voice], sheet[ground]) >= 4.5


@pytest.mark.parametrize(
    ("count", "written"),
    [
        (0, "0 B"),
        (1234, "1,234 B"),
        (10 * 1024 - 1, "10,239 B"),
        (10 * 1024, "10.0 KiB"),
        (1_258_291, "1.2 MiB"),
        (2**20 - 1, "1.0 MiB"),
        (8 * 2**30, "8.0 GiB"),
        (3 * 2**40, "3.0 TiB"),
    ],
)
def test_bytes_are_exact_below_10_kib_and_rounded_above(count, written):
    assert human_bytes(count) == written


def test_the_exact_form_keeps_every_byte():
    assert exact_bytes(24_360) == "24,360 B (23.8 KiB)"
    assert exact_bytes(640) == "640 B"


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0, "0 s"),
        (4.56, "4.56 s"),
        (123.4, "123 s"),
        (0.0123, "12.3 ms"),
        (0.005, "5.00 ms"),
        (0.0001, "100 µs"),
        (0.9999, "1.00 s"),
    ],
)
def test_seconds_are_written_with_three_figures(seconds, written):
    assert human_seconds(seconds) == written


@pytest.mark.parametrize(
    ("count", "written"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (999, "999"),
        (1000, "1 k"),
        (78_240_000_000, "78.2 G"),
        (999_700, "1 M"),
        (3.14e23, "3.14e+05 E"),
    ],
)
def test_large_numbers_have_three_figures_and_a_prefix(count, written):
    assert human_count(count) == written


def test_a_unit_follows_the_prefix():
    assert human_count(312e12, "FLOP/s") == "312 TFLOP/s"
    assert human_count(5, "B/s") == "5 B/s"
