"""The paths on the page about the architecture lead to the package's files."""

from pathlib import Path

from bs4 import BeautifulSoup

ROOT = Path(__file__).parents[2]
PAGE = "reference/architecture.html"


def parsed(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_text("utf-8"), "html.parser")


def test_a_station_of_a_path_leads_to_the_text_of_its_files(site: Path) -> None:
    named = parsed(site / PAGE).select(".course-process code")
    ours = [code for code in named if code.text.startswith("src/")]
    assert ours
    for code in ours:
        assert code.parent is not None
        source = parsed((site / PAGE).parent / str(code.parent["href"])).select_one("article pre")
        assert source is not None
        assert source.text.strip() == (ROOT / code.text).read_text("utf-8").strip()


def test_the_site_does_not_show_right_answers(site: Path) -> None:
    assert [folder.name for folder in (site / "_modules").iterdir()] == ["src"]
