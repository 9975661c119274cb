"""``multigpu solution``: the reference answer, once yours passes."""

import argparse
import ast
from collections.abc import Iterator, Sequence

from rich.syntax import Syntax
from rich.text import Text

from multigpu.checking.source import first_line, reached
from multigpu.commands.desk import Desk
from multigpu.commands.showing import console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu solution``."""
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--peek", action="store_true", help="show it before yours passes")


def run(options: argparse.Namespace) -> int:
    """Show the reference answer, or say what it takes to see it."""
    desk, out = Desk.here(), console()
    exercise = desk.catalog.one(options.name)
    if not options.peek and desk.progress.state(exercise) != "pass":
        out.print(
            f"{exercise.name} does not pass yet. Check it with `multigpu check {exercise.name}`, "
            "or add --peek to look all the same."
        )
        return 1
    source = (desk.course.solutions / exercise.file).read_text(encoding="utf-8")
    code = code_of(source, exercise.function)
    out.print(Text(f"solutions/{exercise.file}", "dim"))
    if out.is_terminal and not out.no_color:
        out.print(Syntax(code, "python", theme="ansi_dark", background_color="default"))
    else:
        out.print(Text(code))
    return 0


def code_of(source: str, function: str) -> str:
    """An exercise's code and the private parts of the module that it uses, without the task.

    The task is the docstring, which ``multigpu next`` shows.
    """
    tree, lines = ast.parse(source), source.splitlines()
    tree.body = [node for node in tree.body if not _is_other_exercise(node, function)]
    exercise, *_ = parts = reached(tree, function)
    methods = exercise.body if isinstance(exercise, ast.ClassDef) else []
    public = [node for node in methods if not _is_private(node)]
    dropped = {n for node in (exercise, *public) for n in _docstring_lines(node, lines)}
    texts = {}
    for node in parts:
        first, last = first_line(node), node.end_lineno or node.lineno
        numbers = [number for number in range(first, last + 1) if number not in dropped]
        texts[first] = "\n".join(lines[number - 1] for number in numbers)
    return "\n\n\n".join(texts[first] for first in sorted(texts))


def _is_other_exercise(node: ast.stmt, function: str) -> bool:
    return getattr(node, "name", function) != function and not _is_private(node)


def _is_private(node: ast.stmt) -> bool:
    name: str = getattr(node, "name", "")
    return name.startswith("_") and not name.startswith("__")


def _docstring_lines(node: ast.AST, lines: Sequence[str]) -> Iterator[int]:
    """The lines of a docstring, and the blank one below it."""
    if not isinstance(node, ast.FunctionDef | ast.ClassDef) or ast.get_docstring(node) is None:
        return
    if len(node.body) > 1:  # without anything else it must stay
        last = node.body[0].end_lineno or node.body[0].lineno
        yield from range(node.body[0].lineno, last + (2 if not lines[last].strip() else 1))
