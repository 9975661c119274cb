"""A page on paper: the text alone, all of it, in ink on white."""

from collections.abc import Callable
from typing import Any

import pytest

HIDDEN = (".bd-header", ".bd-sidebar-secondary", ".bd-footer", ".copybtn", ".course-ask")


@pytest.fixture
def paper(open_page: Callable) -> Any:
    """A lesson in the dark, as it is sent to the printer."""
    page = open_page("lessons/data_parallel.html", color_scheme="dark")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    return page


def test_paper_shows_the_text_with_every_answer_and_nothing_to_click(paper: Any) -> None:
    assert not [name for name in HIDDEN if paper.locator(name).first.is_visible()]
    answers = paper.locator(".course-predict .course-answer")
    assert answers.count() > 1
    assert all(answer.is_visible() for answer in answers.all())


def test_paper_is_light_and_no_line_of_code_is_cut(paper: Any) -> None:
    assert paper.locator("html").get_attribute("data-theme") == "light"
    cut = "all => all.filter(pre => pre.scrollWidth > pre.clientWidth + 1).length"
    assert paper.locator("div.highlight pre").evaluate_all(cut) == 0
    paper.evaluate("dispatchEvent(new Event('afterprint'))")
    assert paper.locator("html").get_attribute("data-theme") == "dark"
