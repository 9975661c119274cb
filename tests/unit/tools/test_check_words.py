"""Which words `make lint` finds, and which texts it leaves alone."""

import re

import check_words
import pytest

WORDS = [check_words.Word(re.compile("is no (?!longer)[a-z]+", re.IGNORECASE), "is not a")]
SPELLED = {"colour": "color"}


def found(prose: str) -> list[tuple[int, str]]:
    return [(each.line, each.words) for each in check_words.look(prose, WORDS, SPELLED)]


def test_a_pattern_is_found_across_a_line_break_and_names_its_first_line():
    assert found("One.\nThis is\n  no tensor.") == [(2, "is no tensor")]


def test_words_of_two_paragraphs_are_not_one_pattern():
    assert found("What this is\n\nno tensor") == []


def test_british_spelling_is_found():
    assert found("its colour") == [(1, "colour")]


@pytest.mark.parametrize(
    "page",
    [
        ".. run::\n\n   # the colour\n   paint(colour)\n",
        "Call ``colour(1)``.",
        ".. a colour that readers do not see",
        "Like this::\n\n   colour = 1\n",
    ],
)
def test_code_on_a_page_is_left_alone(page):
    assert found(check_words.prose_of_page(page)) == []


def test_prose_after_code_is_read():
    page = ".. run::\n\n   paint()\n\nIts colour.\n"
    assert found(check_words.prose_of_page(page)) == [(5, "colour")]


def test_a_message_in_several_strings_is_read_as_one_sentence():
    module = 'error = (\n    "this is "\n    f"no tensor: {colour}"\n)\ncolour = "colour"\n'
    assert (2, "is no tensor") in found(check_words.prose_of_python(module))


def test_names_in_code_are_left_alone():
    assert found(check_words.prose_of_python('colour = {"colour": 1}\n')) == []
