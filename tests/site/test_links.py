"""What the pages' files say: links that lead somewhere, no outside asset, no page too heavy,
all of them valid HTML."""

import gc
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup

ROOT = Path(__file__).parents[2]
HEAVIEST = 500_000  # bytes of a page with its figures
LAB = "/lab/tree/notebooks/"  # JupyterLab's side of `multigpu start`
ASSETS = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}


@cache
def parsed(path: Path) -> BeautifulSoup:
    page = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
    gc.freeze()  # it stays: looking through all pages for garbage took a quarter of the time
    return page


@cache
def anchors(path: Path) -> set[str]:
    return {element["id"] for element in parsed(path).find_all(id=True)}


def internal_links(site: Path, page: Path) -> Iterator[str]:
    for link in parsed(site / page).find_all("a", href=True):
        if not urlsplit(link["href"]).scheme:
            yield link["href"]


def lead_nowhere(site: Path, page: Path) -> Iterator[str]:
    for href in internal_links(site, page):
        path, fragment = unquote(urlsplit(href).path), unquote(urlsplit(href).fragment)
        if path.startswith(LAB):
            continue
        target = (site / page).parent / path if path else site / page
        if target.is_dir():
            target /= "index.html"
        if not target.is_file():
            yield f"{page}: {href}"
        elif fragment and target.suffix == ".html" and fragment not in anchors(target.resolve()):
            yield f"{page}: {href} (no such anchor)"


def test_every_link_and_anchor_inside_the_site_leads_somewhere(
    site: Path, pages: list[Path]
) -> None:
    assert not [problem for page in pages for problem in lead_nowhere(site, page)]


def test_links_to_the_lab_name_notebooks_that_exist(site: Path, pages: list[Path]) -> None:
    root = site.parents[2]
    links = {href for page in pages for href in internal_links(site, page) if href.startswith(LAB)}
    assert links
    assert all((root / "notebooks" / href.removeprefix(LAB)).is_file() for href in links)


def test_no_asset_comes_from_outside(site: Path, pages: list[Path]) -> None:
    outside = [
        f"{page}: {element[attribute]}"
        for page in pages
        for tag, attribute in ASSETS.items()
        for element in parsed(site / page).find_all(tag, **{attribute: re.compile("^(https?:)?//")})
    ]
    sheets = [
        path
        for path in site.rglob("*.css")
        if re.search(r"(url\(|@import )[\"']?(https?:)?//", path.read_text())
    ]
    assert not outside
    assert not sheets


def test_every_output_of_a_notebook_can_be_displayed(site: Path, pages: list[Path]) -> None:
    broken = "Data type cannot be displayed"
    assert not [page for page in pages if broken in (site / page).read_text(encoding="utf-8")]


def test_no_page_is_heavier_than_half_a_megabyte(site: Path, pages: list[Path]) -> None:
    def weight(page: Path) -> int:
        figures = {img["src"] for img in parsed(site / page).find_all("img", src=True)}
        files = [(site / page).parent / source for source in figures if "data:" not in source]
        return sum(file.stat().st_size for file in [site / page, *files])

    assert not {str(page): weight(page) for page in pages if weight(page) > HEAVIEST}


def test_the_course_adds_one_style_and_one_script(site: Path, pages: list[Path]) -> None:
    """All others come with the theme, with Sphinx and its extensions."""
    own = {path.name for path in (ROOT / "docs" / "_static").iterdir()} | {"course.js"}
    for page in pages:
        head = parsed(site / page)
        added = [tag["href"] for tag in head.select("link[rel=stylesheet]")]
        added += [tag["src"] for tag in head.select("script[src]")]
        names = sorted(PurePosixPath(urlsplit(name).path).name for name in added)
        assert [name for name in names if name in own] == ["course.css", "course.js"], page


def test_every_page_has_a_card_for_whoever_shares_it(site: Path, pages: list[Path]) -> None:
    for page in pages:
        said = {tag["property"]: tag["content"] for tag in parsed(site / page).select("[property]")}
        assert ((site / page).parent / said["og:image"]).is_file(), page
        assert 0 < len(said["og:description"]) <= 220, page
        assert said["og:title"], page


def test_ids_are_unique_on_every_page(site: Path, pages: list[Path]) -> None:
    for page in pages:
        ids = [element["id"] for element in parsed(site / page).find_all(id=True)]
        assert len(ids) == len(set(ids)), page


@pytest.mark.parametrize("name", ["MathJax", "require.min.js", "mathjax"])
def test_formulas_and_notebooks_need_no_script(site: Path, pages: list[Path], name: str) -> None:
    for page in pages:
        scripts = parsed(site / page).find_all("script", src=True)
        assert not [script for script in scripts if name in script["src"]], page


def test_each_page_explains_its_words_and_links_each_by_itself_once(
    site: Path, pages: list[Path]
) -> None:
    seen = 0
    for page in pages:
        words = parsed(site / page).select("a.course-word")
        explained = {f"#{about['id']}" for about in parsed(site / page).select(".course-words > *")}
        assert explained == {f"#about-{word['href'].partition('#')[2]}" for word in words}, page
        by_itself = [word["href"] for word in words if not word.select(".std-term")]
        assert len(by_itself) == len(set(by_itself)), page
        inside = {parent.name for word in words for parent in word.parents}
        assert not inside & {"h1", "h2", "h3", "pre", "code", "button", "summary"}, page
        seen += len(words)
    assert seen


@pytest.mark.slow
def test_every_page_is_valid_html(
    site: Path, pages: list[Path], node_module: Callable[[str], Path], tmp_path: Path
) -> None:
    # "standard" is what the HTML standard asks for, without house rules of style.
    config = {"root": True, "extends": ["html-validate:standard"]}
    (tmp_path / "rules.json").write_text(json.dumps(config))
    command = ["node", str(node_module("html-validate") / "bin" / "html-validate.mjs")]
    ran = subprocess.run(
        [*command, "--config", str(tmp_path / "rules.json"), "--formatter", "text",
         *(str(site / page) for page in pages)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
