"""The course's Sphinx extension, piece by piece: quizzes, outputs, exercises."""

import ast
import sys
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from course import difference, outputs, quiz, starters  # noqa: E402 (found through sys.path)


def test_a_choice_may_go_on_in_the_next_line() -> None:
    first, second = quiz.choices_of(["- [ ] one | no,", "  not one", "- [x] two | yes"])
    assert (first.words, first.answer, first.is_right) == ("one", "no, not one", False)
    assert (second.answer, second.is_right, second.line) == ("yes", True, 2)


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


def stream(words: str, name: str = "stdout") -> nbformat.NotebookNode:
    return nbformat.v4.new_output("stream", name=name, text=words)


def test_prints_that_follow_each_other_are_one_block() -> None:
    joined = outputs.joined([stream("a\n"), stream("b\n"), stream("c\n", "stderr")])
    assert [output["text"] for output in joined] == ["a\nb\n", "c\n"]


def test_colors_of_the_terminal_do_not_reach_the_page() -> None:
    assert outputs.printed("\x1b[31mred\x1b[0m\n", "course-stdout").astext() == "red"


def test_an_svg_is_preferred_to_its_words() -> None:
    shown = outputs.displayed({"image/svg+xml": "<?xml?><svg></svg>", "text/plain": "<Figure>"})
    assert shown.astext() == "<svg></svg>"


@pytest.mark.parametrize("module", sorted(path.stem for path in ROOT.glob("solutions/*.py")))
def test_every_exercise_has_its_task_and_its_command_on_the_page(site: Path, module: str) -> None:
    html = (site / "exercises" / f"{module}.html").read_text(encoding="utf-8")
    page = BeautifulSoup(html, "html.parser")
    tree = ast.parse((ROOT / "solutions" / f"{module}.py").read_text(encoding="utf-8"))
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    exercises = starters.module_of(module).exercises
    assert {exercise.function for exercise in exercises} == {
        name for name in names if not name.startswith("_") and name != "main"
    }
    for exercise in exercises:
        section = page.find(id=exercise.anchor).get_text()
        assert f"multigpu check {exercise.name}" in section
        assert exercise.summary.split("``")[0] in section.replace("\n", " ")


def test_a_script_is_shown_whole_with_the_lines_that_are_gone(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text('"""What it is for."""\n\na = 1\nb = 2\n\n\nc = 3\n')
    old = difference.code_of(script)
    assert old == ["a = 1", "b = 2", "", "", "c = 3"]
    shown = difference.difference(old, ["a = 1", "b = 0  # NEW", "", "", "c = 3"])
    assert shown == [" a = 1", "-b = 2", "+b = 0  # NEW", " ", " ", " c = 3"]
