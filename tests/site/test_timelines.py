"""Timelines on the pages answer: to the pointer, to a finger and to arrow keys."""

from collections.abc import Callable
from typing import Any

PAGE = "lessons/ddp_by_hand.html"
NOTEBOOK = "_notebooks/ddp.html"


def first_timeline(page: Any) -> Any:
    return page.locator(".course-answering").first


def test_arrow_keys_read_who_does_what_from_when_to_when(open_page: Callable) -> None:
    page = open_page(PAGE)
    timeline = first_timeline(page)
    timeline.locator(".course-moments").focus()
    parts = timeline.locator("[data-lane='rank 0']")
    sentences = parts.locator("title").all_text_contents()
    starts = [float(start) for start in parts.evaluate_all("all => all.map(p => p.dataset.start)")]
    in_order = [sentence for _, sentence in sorted(zip(starts, sentences, strict=True))]
    for expected in in_order[:4]:
        page.keyboard.press("ArrowRight")
        assert timeline.locator(".course-reading p").inner_text() == expected
        assert " from " in expected
        assert " to " in expected
    page.keyboard.press("ArrowDown")
    assert timeline.locator(".course-reading p").inner_text().startswith("rank 1: ")
    page.keyboard.press("Escape")
    assert timeline.locator(".course-here").count() == 0


def test_who_waited_for_whom_and_which_bytes_are_said_and_the_others_calls_shown(
    open_page: Callable,
) -> None:
    page = open_page(PAGE)
    waiting = page.locator(".course-answering [data-lane]", has_text="; for rank ").first
    waiting.scroll_into_view_if_needed()
    waiting.dispatch_event("pointermove", {"pointerType": "mouse"})
    timeline = page.locator(".course-answering", has=page.locator(".course-here"))
    said = timeline.locator(".course-reading p").inner_text()
    assert "waiting" in said
    assert "B float32" in said
    of = waiting.get_attribute("data-of")
    marked = timeline.locator(".course-here, .course-too")
    assert marked.count() == timeline.locator(f"[data-of='{of}']").count() >= 2
    lanes = marked.evaluate_all("all => all.map(p => p.dataset.lane)")
    assert set(lanes) == {"rank 0", "rank 1"}  # the same all-reduce


def test_a_finger_reads_a_timeline_of_a_notebook(open_page: Callable) -> None:
    page = open_page(NOTEBOOK, viewport={"width": 390, "height": 844}, has_touch=True)
    timeline = first_timeline(page)
    part = timeline.locator("[data-lane='rank 1']").first
    part.scroll_into_view_if_needed()
    box = part.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert timeline.locator(".course-reading p").inner_text().startswith("rank 1: ")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
