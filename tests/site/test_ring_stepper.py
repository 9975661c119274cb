"""The ring stepper: by keyboard, without JavaScript; and its numbers are those of a traced run."""

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup

PAGE = "lessons/server_to_all_reduce.html"
ROOT = Path(__file__).parents[2]
NUMBERS, BYTES = 12, 8


@pytest.fixture(scope="module")
def record(site: Path) -> dict[str, Any]:
    page = BeautifulSoup((site / PAGE).read_text(encoding="utf-8"), "html.parser")
    return json.loads(page.select_one(".course-stepper script").string)


def steps_of(ranks: int) -> list[str]:
    rounds = range(1, ranks)
    return ["start", *(f"add {i}" for i in rounds), *(f"copy {i}" for i in rounds)]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_its_messages_are_those_that_a_traced_run_of_the_ring_makes(
    record: dict, ranks: int
) -> None:
    import torch

    from multigpu import run_ranks

    path = ROOT / "solutions" / "collectives.py"
    spec = importlib.util.spec_from_file_location("collectives", path)
    assert spec is not None
    assert spec.loader is not None
    collectives = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(collectives)
    numbers = torch.zeros(NUMBERS, dtype=torch.int64)
    ran = run_ranks(collectives.ring_all_reduce, ranks, numbers, backend="gloo", show=False)
    trace = ran.trace
    sends = [call for call in trace.messages() if call.op == "send"]
    traced = sorted((f"rank {c.rank}", f"rank {c.peer}", c.bytes) for c in sends)
    frames = record["cases"][str(ranks)]["ring"]
    shown = sorted((c["source"], c["target"], c["bytes"]) for f in frames for c in f["copies"])
    assert shown == traced
    assert len(shown) == 2 * (ranks - 1) * ranks
    assert sum(count for _, _, count in shown) == 2 * (ranks - 1) * NUMBERS * BYTES


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_rank_ends_with_every_complete_sum(record: dict, ranks: int) -> None:
    frames = record["cases"][str(ranks)]["ring"]
    assert [frame["label"] for frame in frames] == steps_of(ranks)
    assert frames[0]["holds"] == [[str(rank)] * ranks for rank in range(ranks)]
    everyone = "+".join(map(str, range(ranks)))
    assert [held.count(everyone) for held in frames[ranks - 1]["holds"]] == [1] * ranks
    assert frames[-1]["holds"] == [[everyone] * ranks] * ranks


def current(page: Any) -> str:
    return page.locator(".course-movements [aria-current]").inner_text()


def test_every_step_can_be_reached_by_keyboard(open_page: Callable) -> None:
    page = open_page(PAGE)
    page.locator(".course-stepper .course-stage").focus()
    page.keyboard.press("Home")
    seen = [current(page)]
    for _ in range(6):
        page.keyboard.press("ArrowRight")
        seen.append(current(page))
    assert seen == steps_of(4)
    page.keyboard.press("ArrowRight")
    assert current(page) == "copy 3"
    page.keyboard.press("ArrowLeft")
    assert current(page) == "copy 2"
    page.keyboard.press("End")
    assert current(page) == "copy 3"


def test_buttons_step_and_play(open_page: Callable) -> None:
    page = open_page(PAGE)
    page.get_by_role("button", name="add 2").click()
    page.get_by_role("button", name="Next →").click()
    assert current(page) == "add 3"
    page.get_by_role("button", name="← Back").click()
    assert current(page) == "add 2"
    page.get_by_role("button", name="Play").click()
    assert page.get_by_role("button", name="Pause").is_visible()


def test_another_number_of_ranks_has_other_steps(open_page: Callable) -> None:
    page = open_page(PAGE)
    page.locator(".course-stepper .course-stage").focus()
    page.keyboard.press("End")
    page.locator(".course-stepper").get_by_role("radio", name="4").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".course-stepper").get_by_role("radio", name="3").is_checked()
    assert page.locator(".course-movements button").all_inner_texts() == steps_of(3)
    assert current(page) == "copy 2", "the last step there is"
    drawn = page.locator(".course-film text").all_text_contents()
    assert "rank 2" in drawn
    assert "rank 3" not in drawn


def test_each_step_is_said_with_its_bytes(open_page: Callable, record: dict) -> None:
    page = open_page(PAGE)
    page.get_by_role("button", name="add 2").click()
    said = page.locator(".course-stepper .course-stage [role=status]").inner_text()
    assert re.match(r"add 2\D+2\D+6\b", said)
    for copy in record["cases"]["4"]["ring"][2]["copies"]:
        assert re.search(rf"{copy['source']}\D+{copy['target']}\D+\b{copy['bytes']} B", said)


def test_the_drawing_labels_every_message_with_its_bytes(open_page: Callable) -> None:
    page = open_page(PAGE)
    page.get_by_role("button", name="copy 1").click()
    assert page.locator(".course-film .stripes").count() == 4
    assert page.locator(".course-film text").all_text_contents().count("24 B") == 4
    page.get_by_role("button", name="start").click()
    assert page.locator(".course-film .stripes").count() == 0


def test_reduced_motion_stops_the_animation(open_page: Callable) -> None:
    moving = "document.getAnimations().filter(a => a.animationName?.startsWith('course')).length"
    page = open_page(PAGE)
    page.get_by_role("button", name="Next →").click()
    assert page.evaluate(moving) == 0
    page.emulate_media(reduced_motion="no-preference")
    page.get_by_role("button", name="Next →").click()
    assert page.evaluate(moving) > 0


def test_without_javascript_every_message_stands_in_a_table(
    open_page: Callable, record: dict
) -> None:
    page = open_page(PAGE, java_script_enabled=False)
    tables = page.locator(".course-stepper table")
    assert tables.count() == 3
    for table, (_ranks, run) in zip(tables.all(), record["cases"].items(), strict=True):
        assert table.is_visible()
        words = table.inner_text()
        for frame in run["ring"]:
            for copy in frame["copies"]:
                assert f"{copy['source']} → {copy['target']}: chunk" in words
            assert f"rank 0: {', '.join(frame['holds'][0])}" in words


def test_on_a_phone_the_picture_is_no_wider_than_the_screen(open_page: Callable) -> None:
    page = open_page(PAGE, viewport={"width": 390, "height": 844})
    box = page.locator(".course-film svg").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390


def test_the_notebooks_film_goes_by_arrow_keys_without_any_script(open_page: Callable) -> None:
    page = open_page("_notebooks/ranks.html", java_script_enabled=False)
    film = page.locator("fieldset:has(input[type=radio])").first
    steps = film.locator("input")
    assert film.locator("label").all_text_contents() == steps_of(4)
    film.locator("label").nth(2).click()
    page.keyboard.press("ArrowRight")
    assert steps.nth(3).is_checked()
    shown = [picture.is_visible() for picture in film.locator("svg").all()]
    assert shown == [number == 3 for number in range(7)]
