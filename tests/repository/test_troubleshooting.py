"""Every message id that a check can give is explained in the troubleshooting page, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from multigpu.checking.catalog import Catalog, Course, Exercise
from multigpu.checking.declaration import load
from multigpu.checking.run_verdict import HANGS, OF_A_FINDING
from tests.answers.stored import stored

ROOT = Path(__file__).parents[2]
COURSE = Course(ROOT)
EXERCISES = Catalog(COURSE).exercises
CHECKER = sorted((ROOT / "src" / "multigpu" / "checking").glob("*.py"))
GENERAL = ROOT / "docs" / "messages" / "general.inc"
MISTAKE = re.compile(r"[a-z]+(_[a-z0-9]+)*")


def calls_of(name: str, path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else None
            called = node.func.id if isinstance(node.func, ast.Name) else called
            if called == name:
                yield node


def constants(nodes: list[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def given_by_the_checker() -> set[str]:
    """Ids stand first in Wrong(...), second in Refused(...), refused(...) and _crash(...)."""
    first = {
        name
        for path in CHECKER
        for called in ("Wrong", "Difference")
        for call in calls_of(called, path)
        for name in constants(call.args[:1])
    }
    second = {
        name
        for path in CHECKER
        for called in ("Refused", "refused", "_crash")
        for call in calls_of(called, path)
        for name in constants(call.args[1:2])
    }
    text = "".join(path.read_text() for path in CHECKER)
    signals = set(re.findall(r'message_id = "(\w+)" if .* else "(\w+)"', text)[0])
    hangs = {f"hang_{kind}" for kind in HANGS} | set(OF_A_FINDING)
    return hangs | signals | {name for name in first | second if MISTAKE.fullmatch(name)}


def general_entries() -> list[str]:
    """The ids that the page explains for all exercises: ``hang_busy`` above an indented text."""
    return re.findall(r"^``([\w.]+)``\n   \S", GENERAL.read_text(), re.MULTILINE)


def test_every_general_message_is_explained_once() -> None:
    given = given_by_the_checker()
    assert given >= {"signature", "syntax_error"}, "the reader of the sources is broken"
    assert sorted(given) == sorted(general_entries())


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda each: each.name)
def test_every_message_that_an_answer_must_get_is_explained(exercise: Exercise) -> None:
    declaration = load(COURSE.check_file(exercise.chapter.module, exercise.function))
    wanted = {mistake.id for mistake in declaration.mistakes}
    wanted |= {answer.message_id for answer in stored(exercise.name) if answer.message_id}
    explained = {name for own in declaration.together for name in own.entries}
    assert wanted - {*explained, *general_entries()} == set()


def test_the_page_shows_all_messages_below_the_titles_of_their_chapters() -> None:
    page = (ROOT / "docs" / "troubleshooting.rst").read_text()
    shown = re.findall(r"^(.+)\n~+\n\n\.\. exercise-messages:: (\w+)$", page, re.MULTILINE)
    assert shown == [(chapter.title, chapter.module) for chapter in Catalog(COURSE).chapters]
