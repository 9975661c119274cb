"""The built site in a real browser: one Chromium for all tests, opened from ``file://``."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Each window's address bar opens two hidden pages of its own, dearer than one of ours. Of several
# such flags Chromium heeds the last: PaintHolding is among those that Playwright turns off.
OFF = "WebUIOmniboxPopup,WebUIOmniboxAimPopup,PaintHolding"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--disable-features={OFF}"]
NOT_OURS = {"_static", "_sources", "_modules"}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
MOVING = "document.getAnimations().filter(a => a.animationName?.startsWith('course')).length"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A browser takes its time: the quick tests open it for five pages alone."""
    here = Path(__file__).parent
    for item in items:
        in_browser = "chromium" in getattr(item, "fixturenames", ())
        if item.path.parent == here and in_browser and item.path.name != "test_every_page.py":
            item.add_marker(pytest.mark.slow)


def pages_of(site: Path) -> list[Path]:
    """Every page of the site, relative to its folder."""
    found = (path.relative_to(site) for path in sorted(site.rglob("*.html")))
    return [page for page in found if not NOT_OURS.intersection(page.parts)]


@pytest.fixture(scope="session")
def site(built_site: Path) -> Path:
    return built_site


@pytest.fixture(scope="session")
def pages(site: Path) -> list[Path]:
    return pages_of(site)


@pytest.fixture(scope="session")
def recorded_in(site: Path) -> Callable[[str], list[dict[str, Any]]]:
    """``recorded_in("lessons/mesh.html")``: what the page's steppers and explorers show."""

    def found(page: str) -> list[dict[str, Any]]:
        html = (site / page).read_text(encoding="utf-8")
        texts = re.findall(r'<script type="application/json">(.*?)</script>', html, re.DOTALL)
        return [record for record in map(json.loads, texts) if "cases" in record]

    return found


@pytest.fixture(scope="session")
def chromium(tool: Callable[..., str]) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    path = tool("chromium", "chromium-browser", "google-chrome")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any, site: Path) -> Iterator[Callable[..., Any]]:
    """``open_page("lessons/one_gpu.html", java_script_enabled=False)``, closed after the test."""
    contexts = []

    def opened(name: str, **options: Any) -> Any:
        context = chromium.new_context(reduced_motion="reduce", **options)
        contexts.append(context)
        page = context.new_page()
        path, mark, query = name.partition("?")
        page.goto((site / path).as_uri() + mark + query)
        return page

    yield opened
    for context in contexts:
        context.close()
