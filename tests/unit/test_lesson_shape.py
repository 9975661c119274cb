"""What every lesson promises: a surprise first, three key points, at most 1,500 words."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "lessons"
LESSONS = sorted(path for path in FOLDER.glob("*.rst") if path.stem != "index")
CODE = re.compile(r"^\.\. (?:run|math|literalinclude)::.*\n(?:(?:   .*)?\n)*", re.MULTILINE)
MARKUP = re.compile(
    r"^ *\.\. (?:commands: .*|\S.*?::)|^   :[a-z-]+:(?= )|<[^<>`]+>(?=`)", re.MULTILINE
)

lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)


def words(source: str) -> list[str]:
    """The words of the text. Code is not counted, what stands in tables and quizzes is."""
    text = re.sub(r":run:`[^`]*`", "0", CODE.sub("", source))
    return [word for word in MARKUP.sub("", text).split() if re.search(r"\w", word)]


def body_of(directive: str, source: str) -> str:
    found = re.search(rf"^\.\. {directive}::.*\n((?:(?:   .*)?\n)+)", source, re.MULTILINE)
    return found[1] if found else ""


@lesson
def test_a_lesson_can_be_read_in_one_go(path: Path) -> None:
    assert 500 < len(words(path.read_text())) <= 1500


@lesson
def test_a_lesson_ends_in_three_key_points(path: Path) -> None:
    assert body_of("keypoints", path.read_text()).count("   - ") == 3


@lesson
def test_the_first_section_has_a_cell_to_try_and_asks_for_a_prediction(path: Path) -> None:
    sections = re.split(r"\n.+\n-{3,}\n", path.read_text())
    assert ".. overview::" in sections[0]
    first = sections[1]
    assert first.index(".. run::") < first.index(".. predict::")


@lesson
def test_every_quiz_has_one_right_choice_and_an_answer_to_each(path: Path) -> None:
    quizzes = re.findall(r"^\.\. quiz::.*\n\n((?:   .*\n)+)", path.read_text(), re.MULTILINE)
    assert len(quizzes) >= 3
    for quiz in quizzes:
        choices = re.findall(r"^   - \[([ x])\] .* \| \S.*$", quiz, re.MULTILINE)
        assert len(choices) == quiz.count("   - [") >= 2
        assert choices.count("x") == 1


@lesson
def test_every_lesson_is_in_the_table_of_contents(path: Path) -> None:
    assert f"\n   {path.stem}\n" in (FOLDER / "index.rst").read_text()
