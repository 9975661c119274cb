"""When the pages are built again, and when not."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from multigpu.checking.catalog import Course
from multigpu.checking.lessons import LESSONS
from multigpu.commands import site


class Sphinx:
    """Stands in for a build: writes the page, or fails."""

    def __init__(self, *, succeeds: bool = True) -> None:
        self.runs = 0
        self.succeeds = succeeds
        self.may_end = Event()
        self.may_end.set()

    def __call__(self, root: Path) -> bool:
        self.runs += 1
        self.may_end.wait(10)
        Course(root).pages.mkdir(parents=True, exist_ok=True)
        (Course(root).pages / "index.html").write_text("<h1>pages</h1>")
        for lesson in LESSONS:
            made = root / "notebooks" / "lessons" / f"{lesson.page}.ipynb"
            made.parent.mkdir(parents=True, exist_ok=True)
            made.write_text("a lesson")
        return self.succeeds


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("docs/index.rst", "notebooks/a.ipynb", "src/multigpu/x.py", "solutions/s.py",
                 "exercises/s.py", "constraints.txt"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.fixture
def sphinx(monkeypatch: pytest.MonkeyPatch) -> Sphinx:
    stand_in = Sphinx()
    monkeypatch.setattr(site, "_run_sphinx", stand_in)
    return stand_in


def test_what_is_built_is_not_built_again(root: Path, sphinx: Sphinx) -> None:
    assert site.is_stale(root)
    assert site.build(root)
    assert not site.is_stale(root)
    assert site.build(root)
    assert sphinx.runs == 1


@pytest.mark.parametrize("changed", ["docs/index.rst", "src/multigpu/x.py", "docs/new.rst"])
def test_another_content_makes_the_pages_stale(root: Path, sphinx: Sphinx, changed: str) -> None:
    site.build(root)
    (root / changed).write_text(changed[::-1])  # as long as before
    assert site.is_stale(root)


@pytest.mark.parametrize(
    "made",
    [
        "notebooks/lessons/one_gpu.ipynb",
        "exercises/s.py",
        "src/multigpu/__pycache__/x.pyc",
        "src/multigpu.egg-info/PKG-INFO",
    ],
)
def test_what_a_build_or_an_editor_leaves_does_not(root: Path, sphinx: Sphinx, made: str) -> None:
    site.build(root)
    (root / made).parent.mkdir(parents=True, exist_ok=True)
    (root / made).write_text("made")
    assert not site.is_stale(root)


def notebook(source: str, *, outputs: list[str]) -> str:
    cell = {"cell_type": "code", "source": source, "outputs": outputs, "execution_count": 1}
    return json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def test_running_the_notebook_does_not_but_changing_a_cell_does(root: Path, sphinx: Sphinx) -> None:
    path = root / "notebooks" / "a.ipynb"
    path.write_text(notebook("1 + 1", outputs=[]))
    site.build(root)
    path.write_text(notebook("1 + 1", outputs=["2"]))
    assert not site.is_stale(root)
    path.write_text(notebook("1 + 2", outputs=[]))
    assert site.is_stale(root)


def test_what_was_removed_is_built_again(root: Path, sphinx: Sphinx) -> None:
    site.build(root)
    (root / "notebooks/lessons/ddp_by_hand.ipynb").unlink()
    assert site.is_stale(root)


def test_a_build_that_failed_is_tried_again(root: Path, sphinx: Sphinx) -> None:
    site.build(root)
    (root / "docs" / "index.rst").write_text("a mistake")
    sphinx.succeeds = False
    assert not site.build(root)
    assert site.is_stale(root)
    assert site.failed_before(root)
    (root / "docs" / "index.rst").write_text("another try")
    assert not site.failed_before(root)


def test_two_builds_at_once_are_one(root: Path, sphinx: Sphinx) -> None:
    sphinx.may_end.clear()
    with ThreadPoolExecutor(2) as pool:
        builds = [pool.submit(site.build, root) for _ in range(2)]
        sphinx.may_end.set()
        assert [build.result() for build in builds] == [True, True]
    assert sphinx.runs == 1
