"""Every message of the checker is found on its page by its id, and by a word of it."""

import re
from collections.abc import Callable
from pathlib import Path

from bs4 import BeautifulSoup

from multigpu.checking.catalog import Catalog, Course
from multigpu.checking.declaration import load

ROOT = Path(__file__).parents[2]
COURSE = Course(ROOT)
GENERAL = (ROOT / "docs" / "messages" / "general.inc").read_text(encoding="utf-8")
WRITTEN = re.findall(r"^``([\w.]+)``\n   \S", GENERAL, re.MULTILINE)
DECLARED = [
    name
    for exercise in Catalog(COURSE).exercises
    for name in load(COURSE.check_file(exercise.chapter.module, exercise.function)).entries
]
EXPLAINED = sorted([*WRITTEN, *DECLARED])


def test_every_message_has_its_id_as_its_anchor(site: Path) -> None:
    page = BeautifulSoup((site / "troubleshooting.html").read_text("utf-8"), "html.parser")
    terms = page.select(".course-messages dt")
    assert sorted(term.get_text() for term in terms) == EXPLAINED
    assert len({term["id"] for term in terms}) == len(terms)
    for term in terms:
        assert term["id"].removesuffix("-2") == term.get_text()  # both `broadcast` may have it
        assert term.find_next_sibling("dd").get_text().strip()


def test_a_message_is_found_by_words_of_it(open_page: Callable) -> None:
    section = open_page("troubleshooting.html").locator(".course-messages")
    section.get_by_role("searchbox").fill("split.remainder rounds down")
    ids = section.locator("dt:visible").all_inner_texts()
    assert ids == [name for name in EXPLAINED if name.startswith("split.remainder")]
    headings = section.locator(":is(h3, h4):visible").all_inner_texts()
    assert [words.strip("#\n") for words in headings] == ["Data parallelism by hand", "split"]
    counts = re.findall(r"\d+", section.get_by_role("status").inner_text())
    assert counts == ["2", str(len(EXPLAINED))]
    assert not section.locator(".course-chapters").is_visible()
    section.get_by_role("searchbox").fill("")
    assert section.locator("dt:visible").count() == len(EXPLAINED)


def test_two_clicks_lead_to_the_messages_of_any_exercise(open_page: Callable) -> None:
    page = open_page("troubleshooting.html")
    chapters = page.locator(".course-chapters")
    shown = chapters.locator("li li").all_inner_texts()
    assert shown == [exercise.function for exercise in Catalog(COURSE).exercises]
    page.locator("article li a", has_text="Messages of the checker").click()
    chapters.get_by_role("link", name="best_layout").click()
    assert page.evaluate("document.querySelector(':target').innerText").startswith("best_layout")
