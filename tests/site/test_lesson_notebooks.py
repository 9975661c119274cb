"""Each lesson as a page and as a notebook: its code was run, the notebook has the page's cells and
text, and a learner's changes are kept."""

import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from bs4 import BeautifulSoup, SoupStrainer

from multigpu.checking.lessons import LESSONS, Lesson

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ", ".join(f".highlight-{name}" for name in ("python3", "python", "default", "pycon"))
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from course import lesson_notebooks  # noqa: E402 (found through sys.path)

lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.page)


def made(lesson: Lesson) -> nbformat.NotebookNode:
    path = ROOT / "notebooks" / "lessons" / f"{lesson.page}.ipynb"
    return nbformat.read(path, as_version=4)


@cache
def ran_for(lesson: Lesson) -> list[nbformat.NotebookNode]:
    """The cells whose outputs a lesson shows."""
    shown = ROOT / "docs" / "_build" / "shown" / f"lessons--{lesson.page}.ipynb"
    return nbformat.read(shown, as_version=4).cells


@cache
def article(site: Path, lesson: Lesson) -> BeautifulSoup:
    html = (site / "lessons" / f"{lesson.page}.html").read_text(encoding="utf-8")
    return BeautifulSoup(html, "html.parser", parse_only=SoupStrainer("article"))


@lesson
def test_every_code_block_was_run(site: Path, lesson: Lesson) -> None:
    ran = {cell.source.strip() for cell in ran_for(lesson)}
    scripts = sorted((ROOT / "docs" / "scripts").glob("*.py"))
    included = "\n".join(script.read_text(encoding="utf-8") for script in scripts)
    blocks = article(site, lesson).select(PYTHON)
    assert blocks
    for block in blocks:
        source = block.get_text().strip()
        if "course-code" in block["class"]:
            assert source in ran
        else:
            assert all(line in included for line in source.splitlines()), source


@lesson
def test_its_notebook_has_the_cells_that_ran_without_outputs(site: Path, lesson: Lesson) -> None:
    hidden = {"value", "quiet"}
    ran = [c.source for c in ran_for(lesson) if not hidden & set(c.metadata.get("tags", []))]
    code = [cell for cell in made(lesson).cells if cell.cell_type == "code"]
    assert [cell.source for cell in code] == ran
    assert not [cell for cell in code if cell.outputs]
    assert not [cell for cell in code if "sys.path" in cell.source or "chdir" in cell.source]


@lesson
def test_its_notebook_has_the_headings_of_the_page_and_nothing_a_lab_cannot_show(
    site: Path, lesson: Lesson
) -> None:
    text = "\n".join(cell.source for cell in made(lesson).cells if cell.cell_type == "markdown")
    headings = [
        heading.get_text().rstrip("#¶").strip()
        for heading in article(site, lesson).select("h1, h2")
    ]
    found = [line.lstrip("# ").replace("`", "") for line in text.splitlines() if line[:1] == "#"]
    assert headings == [re.sub(r"\\(.)", r"\1", heading) for heading in found]
    assert not re.findall(r"COURSE\w+|<(?:div|span|script|svg|math)\b", text)
    assert text.count("<details>") == text.count("</details>")


@lesson
def test_its_links_lead_to_lessons_to_notebooks_or_out(site: Path, lesson: Lesson) -> None:
    folder = ROOT / "notebooks" / "lessons"
    for cell in made(lesson).cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\(([^)\s]+)\)", cell.source):
                assert target.startswith("http") or (folder / target).is_file(), target


@pytest.fixture
def page(tmp_path: Path) -> Callable[[str], nbformat.NotebookNode]:
    """``page(words)``: the notebook as it is after a build in which the lesson has these words."""
    app = SimpleNamespace(srcdir=str(tmp_path / "docs"))

    def built(words: str) -> nbformat.NotebookNode:
        body = f"<section><h1>One GPU</h1><p>{words}</p></section>"
        lesson_notebooks.write(app, "lessons/one_gpu", "", {"body": body}, doctree=object())
        return nbformat.read(path_of(tmp_path), as_version=4)

    return built


def path_of(root: Path) -> Path:
    return root / "notebooks" / "lessons" / "one_gpu.ipynb"


def test_a_new_build_brings_the_new_words(page: Callable, tmp_path: Path) -> None:
    opened = page("Old words.")
    opened.metadata["language_info"] = {"version": "3.12"}  # as the lab saves it after a run
    nbformat.write(opened, path_of(tmp_path))
    assert "New words." in page("New words.").cells[0].source


def test_a_learners_changes_are_kept(page: Callable, tmp_path: Path) -> None:
    opened = page("Old words.")
    opened.cells.append(nbformat.v4.new_code_cell("my_own = 1"))
    nbformat.write(opened, path_of(tmp_path))
    assert page("New words.").cells[-1].source == "my_own = 1"
