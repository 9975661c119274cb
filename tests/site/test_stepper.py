"""The stepper: by keyboard, by buttons, by touch, without JavaScript; and what it shows is so."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup

PAGE = "lessons/data_parallel_by_hand.html"
MOVEMENTS = ["start", "split", "replicate", "parallel_apply", "gather", "backward",
             "sum_gradients", "step", "broadcast", "next_forward"]  # fmt: skip


@pytest.fixture(scope="module")
def record(site: Path) -> dict[str, Any]:
    page = BeautifulSoup((site / PAGE).read_text(encoding="utf-8"), "html.parser")
    return json.loads(page.select_one(".course-stepper script").string)


def moved(frames: list[dict], movement: str) -> list[tuple[str, str, int]]:
    frame = next(frame for frame in frames if frame["movement"] == movement)
    return sorted((copy["source"], copy["target"], copy["bytes"]) for copy in frame["copies"])


@pytest.mark.parametrize("gpus", [2, 3, 4])
def test_the_recorded_bytes_are_those_of_the_formulas(record: dict, gpus: int) -> None:
    rows, weights = record["rows"], record["weights"]
    size = -(-rows // gpus)
    chunks = [min(size, rows - start) for start in range(0, rows, size)]
    others = range(1, gpus)
    out = [("cuda:0", f"cuda:{i}", weights) for i in others]
    back = [(f"cuda:{i}", "cuda:0", weights) for i in others]
    image, scores = 4 * 8 * 8, 4 * 10
    for side in ("hand", "dp"):
        frames = record["cases"][str(gpus)][side]
        assert [frame["movement"] for frame in frames] == MOVEMENTS
        assert moved(frames, "split") == [
            ("cpu", f"cuda:{i}", image * chunk) for i, chunk in enumerate(chunks)
        ]
        assert moved(frames, "replicate") == out
        assert moved(frames, "parallel_apply") == []
        assert moved(frames, "gather") == [
            (f"cuda:{i}", "cuda:0", scores * chunks[i]) for i in others
        ]
        assert moved(frames, "sum_gradients") == back
        assert moved(frames, "step") == []
        assert frames[6]["holds"][0]["gradients"] == "whole"
    assert moved(record["cases"][str(gpus)]["hand"], "broadcast") == out


@pytest.mark.parametrize("gpus", [2, 3, 4])
def test_nn_data_parallel_sends_no_broadcast_but_replicates_again(record: dict, gpus: int) -> None:
    frames = record["cases"][str(gpus)]["dp"]
    assert moved(frames, "broadcast") == []
    again = set(moved(frames, "next_forward"))
    assert again == {*moved(frames, "split"), *moved(frames, "replicate")}
    after_step = frames[MOVEMENTS.index("step")]["holds"]
    assert [held["weights"] for held in after_step] == [1] + [None] * (gpus - 1)
    assert [held["weights"] for held in frames[-1]["holds"]] == [1] * gpus


def current(page: Any) -> str:
    return page.locator(".course-movements [aria-current]").inner_text()


def test_every_step_can_be_reached_by_keyboard(open_page: Callable) -> None:
    page = open_page(PAGE)
    page.locator(".course-movements button").first.focus()
    page.keyboard.press("Home")
    assert current(page) == "start"
    seen = []
    for _ in MOVEMENTS[1:]:
        page.keyboard.press("ArrowRight")
        seen.append(current(page))
    assert seen[1] == "replicate"
    assert seen[-1] == "next forward"
    assert len(set(seen)) == len(seen)
    page.keyboard.press("ArrowRight")
    assert current(page) == "next forward"
    page.keyboard.press("ArrowLeft")
    assert current(page) == "broadcast"
    page.keyboard.press("End")
    assert current(page) == "next forward"


def test_space_plays_and_pauses(open_page: Callable) -> None:
    page = open_page(PAGE)
    page.locator(".course-stepper .course-stage").focus()
    page.keyboard.press("Space")
    assert page.get_by_role("button", name="Pause").is_visible()
    page.keyboard.press("Space")
    assert page.get_by_role("button", name="Play").is_visible()


def test_each_step_is_said_with_its_bytes(open_page: Callable, record: dict) -> None:
    page = open_page(PAGE)
    page.get_by_role("button", name="sum_gradients").click()
    said = page.locator(".course-stepper .course-stage [role=status]").inner_text()
    assert re.match(r"sum_gradients\D+6\D+9\b", said)
    assert re.search(rf"GPU 1\D+GPU 0\D+\b{record['weights']:,} B", said)
    assert "By hand:" in said
    assert "nn.DataParallel:" in said


def test_arrow_keys_choose_the_number_of_gpus_inside_the_chooser(open_page: Callable) -> None:
    page = open_page(PAGE)
    before = current(page)
    page.get_by_role("radio", name="4").focus()
    page.keyboard.press("ArrowLeft")
    assert page.get_by_role("radio", name="3").is_checked()
    assert current(page) == before
    assert page.locator(".course-drawing").first.locator("text=GPU 2").count() == 1
    assert page.locator(".course-drawing").first.locator("text=GPU 3").count() == 0


def test_the_drawing_labels_every_copy_with_its_exact_bytes(
    open_page: Callable, record: dict
) -> None:
    page = open_page(PAGE)
    page.get_by_role("button", name="broadcast").click()
    by_hand, data_parallel = page.locator(".course-drawing").all()
    assert by_hand.locator(".amount").all_text_contents() == [f"{record['weights']:,} B"] * 3
    assert data_parallel.locator(".copy").count() == 0


def test_a_swipe_steps_on(open_page: Callable) -> None:
    page = open_page(PAGE, viewport={"width": 390, "height": 844}, has_touch=True)
    before = current(page)
    page.locator(".course-drawing").first.evaluate("""drawing => {
        const at = (x) => new Touch({ identifier: 1, target: drawing, clientX: x, clientY: 200 });
        const fire = (name, touch) => drawing.dispatchEvent(new TouchEvent(name,
          { bubbles: true, touches: [touch], changedTouches: [touch] }));
        fire("touchstart", at(300)); fire("touchend", at(100)); }""")
    assert before == "split"
    assert current(page) == "replicate"


def test_reduced_motion_stops_the_animation(open_page: Callable) -> None:
    moving = "document.getAnimations().filter(a => a.animationName?.startsWith('course')).length"
    still = open_page(PAGE)
    still.get_by_role("button", name="Next →").click()
    assert still.evaluate(moving) == 0
    still.emulate_media(reduced_motion="no-preference")
    still.get_by_role("button", name="Next →").click()
    still.get_by_role("button", name="Next →").click()
    assert still.evaluate(moving) > 0


def test_without_javascript_every_number_stands_in_a_table(
    open_page: Callable, record: dict
) -> None:
    page = open_page(PAGE, java_script_enabled=False)
    tables = page.locator(".course-stepper table")
    assert tables.count() == len(record["cases"])
    table = tables.nth(1)
    assert table.is_visible()
    assert re.search(rf"GPU 0\D+GPU 2\D+\b{record['weights']:,} B", table.inner_text())
    assert "No broadcast" in table.inner_text()


def test_on_a_phone_the_buttons_stay_in_sight_beside_the_first_drawing(open_page: Callable) -> None:
    page = open_page(PAGE, viewport={"width": 390, "height": 700})
    page.evaluate("document.querySelector('.course-sides').scrollIntoView({ block: 'start' })")
    box = page.locator(".course-buttons").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 700


def test_the_focus_follows_the_movement(open_page: Callable) -> None:
    page = open_page(PAGE)
    page.get_by_role("button", name="gather").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == current(page) == "split"
