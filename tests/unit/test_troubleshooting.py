"""Every message id that a check can give has an entry in the troubleshooting page, and no other has."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECKS = sorted((ROOT / "tests" / "exercises" / "data_parallel").glob("test_*.py"))
CHECKER = sorted((ROOT / "src" / "multigpu" / "checking").glob("*.py"))
MUTANTS = sorted((ROOT / "tests" / "mutants" / "data_parallel").glob("*.py"))
GENERAL = ROOT / "docs" / "messages" / "general.inc"
BY_EXERCISE = ROOT / "docs" / "messages" / "data_parallel.inc"
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


def tables(path: Path) -> Iterator[str]:
    """Mistakes that stand in a table, {"remainder_in_last": (sizes, "what it usually means")}."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Dict) and all(isinstance(v, ast.Tuple) for v in node.values):
            yield from constants([key for key in node.keys if key])


def given_by_checks(path: Path) -> set[str]:
    exercise = path.stem.removeprefix("test_")
    named = {name for call in calls_of("wrong", path) for name in constants(call.args[:1])}
    return {f"{exercise}.{name}" for name in named | set(tables(path)) if MISTAKE.fullmatch(name)}


def given_by_the_checker() -> set[str]:
    """Ids stand first in Wrong(...), and second in Refused(...), refused(...) and _crash(...)."""
    first = {n for p in CHECKER for c in calls_of("Wrong", p) for n in constants(c.args[:1])}
    second = {
        name
        for path in CHECKER
        for called in ("Refused", "refused", "_crash")
        for call in calls_of(called, path)
        for name in constants(call.args[1:2])
    }
    return {name for name in first | second if MISTAKE.fullmatch(name)}


def entries(path: Path) -> set[str]:
    """The ids that the page explains: ``split.remainder_dropped`` above an indented text."""
    return set(re.findall(r"^``([\w.]+)``\n   \S", path.read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", CHECKS, ids=lambda path: path.stem)
def test_every_mistake_of_an_exercise_is_explained(path: Path) -> None:
    assert given_by_checks(path) - entries(BY_EXERCISE) == set()


def test_every_mistake_that_a_mutant_must_get_is_explained() -> None:
    wanted = {n for p in MUTANTS for call in calls_of("wrong", p) for n in constants(call.args[:1])}
    assert {name for name in wanted if "." in name} - entries(BY_EXERCISE) == set()


def test_every_general_message_is_explained() -> None:
    given = given_by_the_checker()
    assert "signature" in given and "syntax_error" in given, "the reader of the sources is broken"
    assert given - entries(GENERAL) == set()


def test_nothing_is_explained_that_no_check_says() -> None:
    sources = "".join(path.read_text() for path in (*CHECKS, *CHECKER))
    said = set(re.findall(r"\w+", sources))
    stale = {name for name in entries(BY_EXERCISE) | entries(GENERAL) if name.split(".")[-1] not in said}
    assert stale == set()


def test_every_entry_can_be_linked_to() -> None:
    for path in (GENERAL, BY_EXERCISE):
        words = path.read_text()
        for name in entries(path):
            assert f".. _msg-{name.replace('.', '-')}:" in words
