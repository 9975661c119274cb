"""How soon a page of the site shows, opened as a file: first paint and all loaded, per page.

Run with `make bench`. Each page is opened in a fresh tab of one Chromium, several times; the median
is printed, slowest page first, with the size of what the page itself brings. Nothing is asserted.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

ROUNDS = 5
TIMES = """() => {
  const [page] = performance.getEntriesByType("navigation");
  const [paint] = performance.getEntriesByName("first-contentful-paint");
  return [paint ? paint.startTime : NaN, page.loadEventEnd];
}"""


def seen(browser, page: Path) -> tuple[float, float]:
    """Milliseconds until the first words are painted, and until all is loaded."""
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.goto(page.as_uri())
    tab.wait_for_function("performance.getEntriesByName('first-contentful-paint').length > 0")
    paint, loaded = tab.evaluate(TIMES)
    tab.close()
    return paint, loaded


def test_first_view(built_site: Path, tool: Callable[..., str]) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    pages = [p for p in sorted(built_site.rglob("*.html")) if "_static" not in p.parts]
    with playwright.sync_playwright() as running:
        path = tool("chromium", "chromium-browser", "google-chrome")
        browser = running.chromium.launch(executable_path=path, args=["--no-sandbox"])
        seen(browser, pages[0])  # the first tab of a browser is slower
        rounds = {page: [seen(browser, page) for _ in range(ROUNDS)] for page in pages}
        browser.close()
    middle = {page: [median(times) for times in zip(*rounds[page], strict=True)] for page in pages}
    print(f"\n  {'page':44}{'HTML':>10}{'first paint':>14}{'loaded':>12}")
    for page in sorted(pages, key=lambda page: -middle[page][0]):
        paint, loaded = middle[page]
        size = f"{page.stat().st_size / 1000:.0f} kB"
        name = str(page.relative_to(built_site))
        print(f"  {name:44}{size:>10}{paint:11.0f} ms{loaded:9.0f} ms")
