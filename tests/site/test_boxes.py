"""Quiz, predict and the notebook button: by keyboard, without JavaScript, served or from a file."""

import functools
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PAGE = "lessons/data_parallel.html"
# How many pixels of each formula are wider than its box, and how far the box can be scrolled.
WIDER = """all => all.map(box => [box.querySelector("math").getBoundingClientRect().width
  - box.clientWidth, box.scrollWidth - box.clientWidth])"""


def test_a_quiz_is_answered_by_keyboard(open_page: Callable) -> None:
    quiz = open_page(PAGE).locator("[data-quiz]").first
    choices = quiz.get_by_role("radio")
    said = quiz.get_by_role("status")
    choices.first.focus()
    assert said.inner_text() == ""
    verdicts = []
    for index in range(choices.count()):
        quiz.page.keyboard.press("Space" if index % 2 else "Enter")
        assert choices.nth(index).get_attribute("aria-checked") == "true"
        assert quiz.locator("[aria-checked=true]").count() == 1
        verdicts.append(said.inner_text())
        quiz.page.keyboard.press("ArrowDown")
    assert len(set(verdicts)) == choices.count()
    assert any(verdict.startswith(("Correct.", "Yes")) for verdict in verdicts)
    assert any(verdict.startswith("Incorrect.") for verdict in verdicts)


def test_without_javascript_each_choice_unfolds_its_answer(open_page: Callable) -> None:
    page = open_page(PAGE, java_script_enabled=False)
    choices = page.locator("[data-quiz]").first.locator("details")
    for index in range(choices.count()):
        assert not choices.nth(index).locator("p").is_visible()
        choices.nth(index).locator("summary").press("Enter")
        assert choices.nth(index).locator("p").is_visible()


def test_a_prediction_hides_its_answer_until_it_is_asked_for(open_page: Callable) -> None:
    box = open_page(PAGE).locator(".course-predict").first
    assert not box.locator(".course-answer").is_visible()
    box.locator("summary").press("Enter")
    assert box.locator(".course-answer").is_visible()


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    """The site's address when a server on this machine serves it, as ``multigpu start`` does."""
    handler = functools.partial(QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def test_a_page_from_a_file_says_how_to_start_the_lab(open_page: Callable) -> None:
    box = open_page("_notebooks/multi_GPU.html").locator(".course-open")
    assert not box.get_by_role("link").is_visible()
    assert "make start" in box.inner_text()


def test_a_served_page_opens_the_notebook_in_the_lab(open_page: Callable, served: str) -> None:
    page = open_page("_notebooks/multi_GPU.html")
    page.goto(f"{served}/_notebooks/multi_GPU.html")
    button = page.locator(".course-open").get_by_role("link")
    assert button.is_visible()
    assert button.evaluate("link => link.href") == f"{served}/lab/tree/notebooks/multi_GPU.ipynb"


def test_a_formula_wider_than_a_phone_scrolls_in_its_box(open_page: Callable) -> None:
    page = open_page("lessons/long_sequences.html", viewport={"width": 390, "height": 844})
    wider = [each for each in page.locator("div.math").evaluate_all(WIDER) if each[0] > 0]
    assert wider
    assert all(scrolls > too_wide - 1 for too_wide, scrolls in wider)  # scrolls: whole pixels
