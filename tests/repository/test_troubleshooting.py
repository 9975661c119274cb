"""Every message id that a check can give is explained in the troubleshooting page, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from multigpu.checking.catalog import Catalog, Course
from multigpu.checking.declaration import load
from multigpu.checking.run_verdict import HANGS, OF_A_FINDING

ROOT = Path(__file__).parents[2]
MODULES: dict[str, list[str]] = {}
for exercise in Catalog(Course(ROOT)).exercises:
    MODULES.setdefault(exercise.chapter.module, []).append(exercise.function)
CHECKER = sorted((ROOT / "src" / "multigpu" / "checking").glob("*.py"))
MESSAGES = ROOT / "docs" / "messages"
GENERAL = MESSAGES / "general.inc"
MISTAKE = re.compile(r"[a-z]+(_[a-z0-9]+)*")


def everything(paths: list[Path]) -> str:
    return "".join(path.read_text() for path in paths)


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
    signals = set(re.findall(r'message_id = "(\w+)" if .* else "(\w+)"', everything(CHECKER))[0])
    hangs = {f"hang_{kind}" for kind in HANGS} | set(OF_A_FINDING)
    return hangs | signals | {name for name in first | second if MISTAKE.fullmatch(name)}


def entries(path: Path) -> set[str]:
    """The ids that a file explains: ``split.remainder_dropped`` above an indented text."""
    text = path.read_text() if path.is_file() else ""
    return set(re.findall(r"^``([\w.]+)``\n   \S", text, re.MULTILINE))


def declared(module: str) -> set[str]:
    """The ids that the declarations of a chapter explain."""
    files = {path.stem: path for path in (ROOT / "tests" / "exercises" / module).glob("*.py")}
    return {name for f in MODULES[module] if f in files for name in load(files[f]).entries}


def sources(module: str) -> list[Path]:
    """The checks of a module, and the answers that learners could write."""
    folders = (ROOT / "tests" / "exercises" / module, ROOT / "tests" / "mutants" / module)
    return [path for folder in folders for path in sorted(folder.glob("*.py"))]


@pytest.mark.parametrize("module", MODULES)
def test_every_id_that_is_written_out_is_explained(module: str) -> None:
    """In a check, or as what an answer must get."""
    known = re.compile(rf"({'|'.join(MODULES[module])})\.[a-z]\w*")
    nodes = [n for path in sources(module) for n in ast.walk(ast.parse(path.read_text()))]
    words = constants([node for node in nodes if isinstance(node, ast.Constant)])
    wanted = {word for word in words if known.fullmatch(word)}
    assert wanted - entries(MESSAGES / f"{module}.inc") - declared(module) == set()


def test_every_general_message_is_explained() -> None:
    given = given_by_the_checker()
    assert given >= {"signature", "syntax_error"}, "the reader of the sources is broken"
    assert given - entries(GENERAL) == set()
    assert entries(GENERAL) - given == set()


def test_nothing_is_explained_that_no_check_says() -> None:
    """One check may say the same of two modules, so the words of all of them count."""
    words = {w for module in MODULES for w in re.findall(r"\w+", everything(sources(module)))}
    for module, functions in MODULES.items():
        for name in entries(MESSAGES / f"{module}.inc"):
            assert name.partition(".")[0] in functions
            assert name.partition(".")[2] in words


def test_no_message_is_explained_twice() -> None:
    text = everything(sorted(MESSAGES.glob("*.inc")))
    explained = re.findall(r"^``([\w.]+)``\n   \S", text, re.MULTILINE)
    assert explained
    assert len(explained) == len(set(explained))


def test_the_page_shows_all_messages() -> None:
    page = (ROOT / "docs" / "troubleshooting.rst").read_text()
    shown = re.findall(r"^\.\. exercise-messages:: (\w+)$", page, re.MULTILINE)
    assert shown == [*MODULES]
