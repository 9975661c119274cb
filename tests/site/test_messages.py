"""Every message of the checker is found on its page by its id, and by a word of it."""

import re
from collections.abc import Callable
from pathlib import Path

from bs4 import BeautifulSoup

ROOT = Path(__file__).parents[2]
EXPLAINED = {
    name
    for path in (ROOT / "docs" / "messages").glob("*.inc")
    for name in re.findall(r"^``([\w.]+)``\n   \S", path.read_text(encoding="utf-8"), re.MULTILINE)
}


def test_every_message_has_its_id_as_its_anchor(site: Path) -> None:
    page = BeautifulSoup((site / "troubleshooting.html").read_text("utf-8"), "html.parser")
    entries = {term["id"]: term for term in page.select(".course-messages dt")}
    assert set(entries) == EXPLAINED
    for name, term in entries.items():
        assert term.get_text() == name
        assert term.find_next_sibling("dd").get_text().strip()


def test_a_message_is_found_by_words_of_it(open_page: Callable) -> None:
    section = open_page("troubleshooting.html").locator(".course-messages")
    section.get_by_role("searchbox").fill("split.remainder row")
    ids = section.locator("dt:visible").all_inner_texts()
    assert ids == [name for name in sorted(EXPLAINED) if name.startswith("split.remainder")]
    assert section.locator("h3:visible").count() == 1
    counts = re.findall(r"\d+", section.get_by_role("status").inner_text())
    assert counts == ["2", str(len(EXPLAINED))]
    section.get_by_role("searchbox").fill("")
    assert section.locator("dt:visible").count() == len(EXPLAINED)
