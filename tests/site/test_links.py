"""What the pages' files say: links that lead somewhere, no outside asset, no page too heavy,
all of them valid HTML."""

from __future__ import annotations

import gc
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
HEAVIEST = 500_000  # bytes of a page with its figures
LAB = "/lab/tree/notebooks/"  # JupyterLab's side of `multigpu start`
ASSETS = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}
EMPTY = {"br", "hr", "img", "input", "link", "meta", "source", "wbr", "col", "base"}  # never closed


@dataclass(eq=False)
class Element:
    tag: str
    attributes: dict[str, str | None]
    parent: Element | None

    @property
    def classes(self) -> list[str]:
        return (self.attributes.get("class") or "").split()

    def around(self) -> Iterator[Element]:
        """What this element is in, from the inside to the outside."""
        if self.parent:
            yield self.parent
            yield from self.parent.around()


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self.inside: Element | None = None

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, dict(attributes), self.inside))
        if tag not in EMPTY:
            self.inside = self.elements[-1]

    def handle_endtag(self, tag: str) -> None:
        closed = self.inside
        while closed and closed.tag != tag:
            closed = closed.parent
        self.inside = closed.parent if closed else self.inside


@cache
def elements(path: Path) -> list[Element]:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    gc.freeze()  # they stay: no search for garbage need look through all pages
    return reader.elements


def values(path: Path, attribute: str, *tags: str) -> list[str]:
    """What an attribute is on each element that has it, or on those of these tags."""
    return [
        element.attributes[attribute] or ""
        for element in elements(path)
        if attribute in element.attributes and (not tags or element.tag in tags)
    ]


@cache
def anchors(path: Path) -> set[str]:
    return set(values(path, "id"))


def internal_links(page: Path) -> list[str]:
    return [href for href in values(page, "href", "a") if not urlsplit(href).scheme]


def lead_nowhere(page: Path) -> Iterator[str]:
    for href in internal_links(page):
        path, fragment = unquote(urlsplit(href).path), unquote(urlsplit(href).fragment)
        if path.startswith(LAB):
            continue
        target = page.parent / path if path else page
        if target.is_dir():
            target /= "index.html"
        if not target.is_file():
            yield f"{page}: {href}"
        elif fragment and target.suffix == ".html" and fragment not in anchors(target.resolve()):
            yield f"{page}: {href} (no such anchor)"


@pytest.fixture(scope="module")
def files(site: Path, pages: list[Path]) -> list[Path]:
    return [(site / page).resolve() for page in pages]


def test_every_link_and_anchor_inside_the_site_leads_somewhere(files: list[Path]) -> None:
    assert not [problem for page in files for problem in lead_nowhere(page)]


def test_links_to_the_lab_name_notebooks_that_exist(files: list[Path]) -> None:
    links = {href for page in files for href in internal_links(page) if href.startswith(LAB)}
    assert links
    assert all((ROOT / "notebooks" / href.removeprefix(LAB)).is_file() for href in links)


def test_no_asset_comes_from_outside(site: Path, files: list[Path]) -> None:
    outside = [
        f"{page}: {source}"
        for page in files
        for tag, attribute in ASSETS.items()
        for source in values(page, attribute, tag)
        if re.match("(https?:)?//", source)
    ]
    sheets = [
        path
        for path in site.rglob("*.css")
        if re.search(r"(url\(|@import )[\"']?(https?:)?//", path.read_text())
    ]
    assert not outside
    assert not sheets


def test_every_output_of_a_notebook_can_be_displayed(files: list[Path]) -> None:
    broken = "Data type cannot be displayed"
    assert not [page for page in files if broken in page.read_text(encoding="utf-8")]


def test_no_page_is_heavier_than_half_a_megabyte(files: list[Path]) -> None:
    def weight(page: Path) -> int:
        figures = {page.parent / source for source in values(page, "src", "img")
                   if "data:" not in source}  # fmt: skip
        return sum(file.stat().st_size for file in [page, *figures])

    assert not {str(page): weight(page) for page in files if weight(page) > HEAVIEST}


def test_the_course_adds_one_style_and_one_script_and_formulas_need_none(files: list[Path]) -> None:
    """All others come with the theme, with Sphinx and its extensions."""
    own = {path.name for path in (ROOT / "docs" / "_static").iterdir()}
    for page in files:
        sheets = [e for e in elements(page) if e.attributes.get("rel") == "stylesheet"]
        added = [sheet.attributes["href"] or "" for sheet in sheets] + values(page, "src", "script")
        names = sorted(PurePosixPath(urlsplit(name).path).name for name in added)
        assert [name for name in names if name in own] == ["course.css", "course.js"], page
        assert not [name for name in names if "mathjax" in name.lower() or "require" in name], page


def test_a_column_on_the_left_lists_the_pages_of_its_part(files: list[Path]) -> None:
    for page in files:
        entries = [each for each in elements(page) if "toctree-l1" in each.classes]
        filled = {around for entry in entries for around in entry.around()}
        columns = [each for each in elements(page) if "bd-docs-nav" in each.classes]
        assert filled.issuperset(columns), f"{page}: a column without a list"


def test_every_page_has_a_card_for_whoever_shares_it(files: list[Path]) -> None:
    for page in files:
        said = {
            element.attributes["property"]: element.attributes["content"] or ""
            for element in elements(page)
            if "property" in element.attributes
        }
        assert (page.parent / said["og:image"]).is_file(), page
        assert 0 < len(said["og:description"]) <= 220, page
        assert said["og:title"], page


def test_ids_are_unique_on_every_page(files: list[Path]) -> None:
    for page in files:
        assert len(values(page, "id")) == len(anchors(page)), page


def test_each_page_explains_its_words_and_links_each_by_itself_once(files: list[Path]) -> None:
    seen = 0
    for page in files:
        words = [element for element in elements(page) if "course-word" in element.classes]
        by_role = {
            outer
            for element in elements(page)
            if "std-term" in element.classes
            for outer in element.around()
        }
        explained = {
            f"#{element.attributes['id']}"
            for element in elements(page)
            if element.parent and "course-words" in element.parent.classes
        }
        targets = [word.attributes["href"] or "" for word in words]
        assert explained == {f"#about-{href.partition('#')[2]}" for href in targets}, page
        alone = [word.attributes["href"] for word in words if word not in by_role]
        assert len(alone) == len(set(alone)), page
        inside = {outer.tag for word in words for outer in word.around()}
        assert not inside & {"h1", "h2", "h3", "pre", "code", "button", "summary"}, page
        seen += len(words)
    assert seen


@pytest.mark.slow
def test_every_page_is_valid_html(
    files: list[Path], node_module: Callable[[str], Path], tmp_path: Path
) -> None:
    # "standard" is what the HTML standard asks for, without house rules of style.
    config = {"root": True, "extends": ["html-validate:standard"]}
    (tmp_path / "rules.json").write_text(json.dumps(config))
    command = ["node", str(node_module("html-validate") / "bin" / "html-validate.mjs")]
    ran = subprocess.run(
        [*command, "--config", str(tmp_path / "rules.json"), "--formatter", "text", *files],
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
