"""The course's Sphinx extension, piece by piece: quizzes, outputs, exercises, ways."""

import ast
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from course import cells, exercises, quiz  # noqa: E402 (found through sys.path)
from course.package import Station, way  # noqa: E402


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


SVG = "{http://www.w3.org/2000/svg}"
STATIONS = [
    Station("Ask", "It asks.", ("ask.py",), "the judge", hands="a question"),
    Station("Send", "It sends.", ("send.py",), "the judge", hands="bytes", link="#send"),
    Station("Answer", "It answers.", ("answer.py",), "the ranks", ranks=2, shares="numbers"),
]


def drawn(stations: list) -> ElementTree.Element:
    return ElementTree.fromstring(way(stations, title="A way").svg())


def test_stations_of_one_process_share_a_frame_and_ranks_have_their_colors() -> None:
    words = [node.text for node in drawn(STATIONS).iter(f"{SVG}text")]
    assert words.count("the judge") == words.count("the ranks") == 1
    assert [word for word in words if word.startswith("rank ")] == ["rank 0", "rank 1"]


def test_only_what_goes_to_another_process_is_striped() -> None:
    def striped(stations: list) -> int:
        paths = drawn(stations).iter(f"{SVG}path")
        return sum(path.get("stroke-dasharray") is not None for path in paths)

    assert striped(STATIONS) == 1
    assert striped(STATIONS[:2]) == 0


def test_a_picture_with_links_is_no_mere_image() -> None:
    assert [link.get("href") for link in drawn(STATIONS).iter(f"{SVG}a")] == ["#send"]
    assert drawn(STATIONS).get("role") == "group"
    assert drawn(STATIONS[:1]).get("role") == "img"
