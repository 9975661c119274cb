"""Words of the glossary explain themselves: to mouse, keyboard and finger, without a script."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup

PAGE = "lessons/processes_and_ranks.html"
WAIT = 2_000  # ms: far more than the card waits before it opens or closes


@pytest.fixture
def page(open_page: Callable) -> Any:
    return open_page(PAGE)


def word_and_card(page: Any) -> tuple[Any, Any]:
    return page.locator("a.course-word").first, page.locator(".course-card")


def test_a_word_shows_its_meaning_under_the_pointer_until_it_leaves(page: Any) -> None:
    word, card = word_and_card(page)
    word.hover()
    card.wait_for(state="visible", timeout=WAIT)
    assert card.locator("strong").inner_text() in word.inner_text().lower()
    card.hover()  # the pointer may go on to what it shows
    page.wait_for_timeout(400)
    assert card.is_visible()
    page.mouse.move(1, 1)
    card.wait_for(state="hidden", timeout=WAIT)


def test_a_word_shows_its_meaning_when_the_keyboard_reaches_it(page: Any) -> None:
    word, card = word_and_card(page)
    links = page.locator(".bd-article a[href]:visible")
    before = links.evaluate_all("(all) => all.findIndex(a => a.matches('.course-word'))") - 1
    links.nth(before).focus()
    page.keyboard.press("Tab")
    card.wait_for(state="visible", timeout=WAIT)
    described = word.get_attribute("aria-describedby")
    about = page.locator(f"#{described} p").all_text_contents()
    assert about == card.locator("p").all_text_contents()[:-1]
    page.keyboard.press("Escape")
    assert not card.is_visible()
    assert word.evaluate("word => word === document.activeElement")


def test_a_tap_opens_the_meaning_and_the_card_leads_on(open_page: Callable) -> None:
    page = open_page(PAGE, has_touch=True, viewport={"width": 390, "height": 700})
    word, card = word_and_card(page)
    word.tap()
    card.wait_for(state="visible", timeout=WAIT)
    assert page.url.endswith(PAGE)
    place = card.bounding_box()
    assert 0 <= place["x"] <= 390 - place["width"]
    card.get_by_role("link").tap()
    page.wait_for_url("**/glossary.html#term-*")


def test_a_definition_says_on_every_page_what_the_glossary_says(
    site: Path, pages: list[Path]
) -> None:
    glossary = BeautifulSoup((site / "glossary.html").read_text("utf-8"), "html.parser")
    shown = set()
    for page in pages:
        html = (site / page).read_text("utf-8")
        for hidden in re.findall(r'<div class="course-words" hidden>.*', html, re.DOTALL):
            words = BeautifulSoup(hidden, "html.parser").select(".course-words > div")
            shown |= {(word["id"].removeprefix("about-"), said(word)) for word in words}
    assert shown
    for anchor, definition in shown:
        term = glossary.find(id=anchor)
        assert definition.endswith(said(term.find_next("dd"))), anchor


def said(element: Any) -> str:
    """The text of an element's paragraphs."""
    return " ".join(" ".join(part.get_text().split()) for part in element.find_all("p"))


def test_without_javascript_a_word_is_a_link_to_the_glossary(open_page: Callable) -> None:
    page = open_page(PAGE, java_script_enabled=False)
    assert not page.locator(".course-words").is_visible()
    page.locator("a.course-word").first.click()
    assert "glossary.html#term-" in page.url
