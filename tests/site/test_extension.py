"""The course's Sphinx extension, piece by piece: quizzes, outputs, exercises, ways."""

import ast
import sys
from itertools import groupby
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from course import cells, exercises, package, quiz  # noqa: E402 (found through sys.path)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["one | no"], r"'one \| no'"),
        (["- [x] one", "- [ ] two | no"], "'one'.*answer"),
        (["- [ ] one | no", "- [ ] two | no"], r"\[x\]"),
        (["- [x] one | yes"], "two choices"),
    ],
)
def test_a_quiz_that_cannot_be_answered_is_refused(lines: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        quiz.choices_of(lines)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("a `b` c", "a ``b`` c"),
        ("a ``b`` and `c`", "a ``b`` and ``c``"),
        ("the :doc:`page <here>`", "the :doc:`page <here>`"),
        ("a `link <https://example.org>`_", "a `link <https://example.org>`_"),
    ],
)
def test_single_backticks_mean_code_and_roles_stay(written: str, meant: str) -> None:
    assert quiz.BACKTICKS.sub(r"``\1``", written) == meant


@pytest.mark.parametrize("module", sorted(path.stem for path in ROOT.glob("solutions/*.py")))
def test_every_exercise_has_its_task_and_its_command_on_the_page(site: Path, module: str) -> None:
    html = (site / "exercises" / f"{module}.html").read_text(encoding="utf-8")
    page = BeautifulSoup(html, "html.parser")
    tree = ast.parse((ROOT / "solutions" / f"{module}.py").read_text(encoding="utf-8"))
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    found = exercises.catalog().find(module)
    assert {exercise.function for exercise in found} == {
        name for name in names if not name.startswith("_")
    }
    for exercise in found:
        section = page.find(id=exercises.anchor_of(exercise)).get_text()
        assert f"multigpu check {exercise.name}" in section
        summary = exercise.task.partition("\n\n")[0].replace("\n", " ")
        assert summary.split("``")[0] in section.replace("\n", " ")


def test_a_script_is_shown_whole_with_the_lines_that_are_gone(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text('"""What it is for."""\n\na = 1\nb = 2\n\n\nc = 3\n')
    old = cells.without_docstring(script)
    assert old == ["a = 1", "b = 2", "", "", "c = 3"]
    shown = cells.difference(old, ["a = 1", "b = 0  # NEW", "", "", "c = 3"])
    assert shown == [" a = 1", "-b = 2", "+b = 0  # NEW", " ", " ", " c = 3"]


@pytest.mark.parametrize("name", package.ways())
def test_a_way_is_told_station_by_station(site: Path, name: str) -> None:
    html = (site / "reference" / "architecture.html").read_text(encoding="utf-8")
    section = BeautifulSoup(html, "html.parser").find(id=f"the-path-of-one-{name}")
    stations = package.ways()[name]
    items = section.select("ol > li")
    assert [item.strong.text for item in items] == [each["name"] for each in stations]
    for item, station in zip(items, stations, strict=True):
        assert [code.text for code in item.select("code")] == station["files"]
        link = item.find("a", string=station["name"])
        assert (link["href"] if link else None) == station.get("link")
        assert station.get("hands", "") in item.text
    frames = [label.text for label in section.select(".course-label")]
    assert frames == [process for process, _ in groupby(each["process"] for each in stations)]
