"""Answers that a learner could write, and the verdict that each must get.

A file of answers holds functions, or classes: each is one answer to the exercise that the file is
named for, marked ``@right`` or ``@wrong("message id")``.  Those without a mark help the others.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])
Definition = ast.FunctionDef | ast.ClassDef


def right(answer: Function) -> Function:
    """Mark an answer that must pass."""
    return answer


def wrong(message_id: str, *, status: str = "wrong") -> Callable[[Function], Function]:
    """Mark an answer that must be refused with this status and message id."""
    return lambda answer: answer


def beside(**others: Function) -> Callable[[Function], Function]:
    """Mark an answer that works only with other functions of its module replaced as well.

    ``@beside(server_step=one_message)``: ``one_message`` of this file takes the place of
    ``server_step``.
    """
    return lambda answer: answer


@dataclass(frozen=True)
class Mutant:
    """One answer, as text that takes the place of the reference's function."""

    exercise: str  # "data_parallel.split"
    name: str
    status: str | None  # None: only the message id is known
    message_id: str | None
    code: str

    @property
    def is_right(self) -> bool:
        """Whether it must pass."""
        return self.status == "pass"

    def record(self, verdict: str) -> dict[str, str]:
        """One line of the table: this answer, and the verdict it got."""
        kind = "right" if self.is_right else "wrong"
        return {"exercise": self.exercise, "answer": self.name, "kind": kind, "verdict": verdict}

    def module(self, solution: str) -> str:
        """The solution's module with this answer in the place of its own."""
        others = _without(self.exercise.rpartition(".")[2], solution)
        return "\n".join([*others, "", "", self.code, ""])


@cache
def _without(function: str, solution: str) -> list[str]:
    """The lines of a module but for those of one function or class."""
    lines = solution.splitlines()
    (node,) = [n for n in ast.parse(solution).body if getattr(n, "name", None) == function]
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
    return [*lines[:first], *lines[node.end_lineno :]]


def mutants_in(path: Path) -> Iterator[Mutant]:
    """All marked answers of one file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    shared = [ast.unparse(node) for node in tree.body if _is_shared(node, path.parent.name)]
    for node in tree.body:
        if not isinstance(node, Definition) or not (mark := _mark(node)):
            continue
        name, node.name = node.name, path.stem
        others = list(_beside(node, tree))
        node.decorator_list = [d for d in node.decorator_list if not _is_ours(d)]
        status, message_id = _verdict(mark)
        code = "\n\n".join([*shared, *others, ast.unparse(node)])
        yield Mutant(f"{path.parent.name}.{path.stem}", name, status, message_id, code)


def _is_shared(node: ast.stmt, module: str) -> bool:
    """Imports and unmarked definitions; not those of this file and of the submission itself."""
    if isinstance(node, ast.ImportFrom):
        return node.module not in ("harness", module)
    return isinstance(node, ast.Import) or (isinstance(node, Definition) and not _mark(node))


def _mark(node: Definition) -> ast.expr | None:
    """The decorator that says how the answer is to be judged."""
    return next((d for d in node.decorator_list if _called(d) in ("right", "wrong")), None)


def _called(decorator: ast.expr) -> str:
    """The name of a decorator, with or without arguments."""
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


def _is_ours(decorator: ast.expr) -> bool:
    return _called(decorator) in ("right", "wrong", "beside")


def _beside(node: Definition, tree: ast.Module) -> Iterator[str]:
    """The definitions that stand in for others of the module, under the names of these."""
    definitions = {each.name: each for each in tree.body if isinstance(each, Definition)}
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and _called(decorator) == "beside":
            for keyword in decorator.keywords:
                other = copy.copy(definitions[ast.unparse(keyword.value)])
                other.name = str(keyword.arg)
                yield ast.unparse(other)


def _verdict(mark: ast.expr) -> tuple[str, str | None]:
    if not isinstance(mark, ast.Call):
        return "pass", None
    options = {keyword.arg: ast.literal_eval(keyword.value) for keyword in mark.keywords}
    return options.get("status", "wrong"), ast.literal_eval(mark.args[0])
