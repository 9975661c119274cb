"""The cells of a page: a failure fails the build and names its place."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import record  # of tools/

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow
CONF = f"""
import sys
sys.path.insert(0, {str(ROOT / "docs" / "_ext")!r})
extensions = ["course"]
html_math_renderer = "mathml"
course_seconds_per_cell = 3
"""
INDEX = """
Wrong in many ways
==================

.. toctree::

   lessons/index

.. run::

   right = 1

The value is :run:`right + 1`, not :run:`wrong`.
"""
LESSON = """
Lesson
======

.. run::
   :raises: KeyError

   {}["absent"]

.. run::
   :raises: KeyError

   "raises nothing"

.. code-block:: python

   print("never run")

.. quiz:: Which choice has no answer?

   - [x] this one | It has.
   - [ ] that one

.. exercise:: data_parallel.no_such_exercise
"""
HANGS = """
Hangs
=====

.. run::

   import time

.. run::

   time.sleep(60)
"""


@pytest.fixture(scope="module")
def wrong_build(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """A small site with one mistake of each kind, built as the course is."""
    docs = tmp_path_factory.mktemp("wrong") / "docs"
    pages = {"conf.py": CONF, "index.rst": INDEX, "lessons/index.rst": LESSON, "hangs.rst": HANGS}
    for name, words in pages.items():
        (docs / name).parent.mkdir(exist_ok=True, parents=True)
        (docs / name).write_text(words, encoding="utf-8")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    return subprocess.run(
        [*command, str(docs), str(docs / "_build")],
        capture_output=True, text=True, timeout=120, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip


@pytest.mark.parametrize(
    "warning",
    [
        r"index\.rst:13: WARNING: .*NameError: name 'wrong'",
        r"lessons/index\.rst:10: WARNING: .*KeyError",
        r"lessons/index\.rst:15: WARNING: .*Python",
        r"'that one'.*answer",
        r"no exercise data_parallel\.no_such_exercise",
        r"hangs\.rst:9: WARNING: .*\b3 s\b",
    ],
)
def test_a_mistake_fails_the_build_and_names_its_place(
    wrong_build: subprocess.CompletedProcess[str], warning: str
) -> None:
    assert wrong_build.returncode == 1, wrong_build.stderr
    assert re.search(warning, wrong_build.stderr)


def test_a_cell_that_raises_as_announced_is_no_mistake(
    wrong_build: subprocess.CompletedProcess[str],
) -> None:
    assert "lessons/index.rst:5" not in wrong_build.stderr


def test_recording_says_which_page_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "conf.py").write_text(CONF)
    (docs / "wrong.rst").write_text("Wrong\n=====\n\n.. run::\n\n   wrong\n")
    (docs / "plain.rst").write_text("Plain\n=====\n\nNothing runs.\n")
    monkeypatch.setattr(record, "ROOT", tmp_path)
    monkeypatch.setattr(record, "DOCS", docs)
    monkeypatch.setattr(sys, "argv", ["record.py", "wrong", "plain", "--anyway"])
    assert record.main() == 1
    said = capsys.readouterr().out.splitlines()[-2:]
    assert [line.split()[3:] for line in said] == [
        ["wrong", "failed"],
        ["plain", "has", "no", "cells"],
    ]
