"""The page that stands for an address without one, under whatever address it is shown."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_skipping_to_the_text_stays_on_the_page(
    open_page: Callable[..., Any], site: Path, tmp_path: Path
) -> None:
    lost = tmp_path / "no" / "such.html"
    lost.parent.mkdir()
    based = f'<head><base href="{site.as_uri()}/">'  # as the server that shows it writes it
    lost.write_text((site / "404.html").read_text(encoding="utf-8").replace("<head>", based, 1))
    page = open_page("404.html")
    page.goto(lost.as_uri())
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{lost.as_uri()}#main-content")  # the browser may take a moment
