"""Names, signatures and docstrings of the exercises, read from the source without importing it."""

import ast
from dataclasses import dataclass
from functools import cache

from course.execution import ROOT


@dataclass(frozen=True)
class Exercise:
    """``module.function`` as the learner sees it; ``task`` is its docstring, reStructuredText."""

    module: str
    function: str
    signature: str
    task: str

    @property
    def name(self):
        return f"{self.module}.{self.function}"

    @property
    def anchor(self):
        return f"exercise-{self.module}-{self.function}".replace("_", "-")

    @property
    def label(self):
        return f"exercise-{self.module}-{self.function}".lower()

    @property
    def summary(self):
        return self.task.partition("\n\n")[0]


@dataclass(frozen=True)
class Module:
    name: str
    introduction: str
    exercises: tuple[Exercise, ...]


def path_of(module):
    """The solution's file. Starters are made from it, so it has the same docstrings; and a learner
    who is writing an answer in ``exercises/`` should not have to wait for a new site."""
    path = ROOT / "solutions" / f"{module}.py"
    if not path.exists():
        raise LookupError(f"there is no {path.relative_to(ROOT)}")
    return path


@cache
def module_of(name):
    tree = ast.parse(path_of(name).read_text(encoding="utf-8"))
    tasks = [
        Exercise(name, node.name, signature_of(node), task)
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and node.name != "main"
        and (task := ast.get_docstring(node))
    ]
    return Module(name, ast.get_docstring(tree) or "", tuple(tasks))


def signature_of(node):
    if isinstance(node, ast.ClassDef):
        inside = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        arguments = ast.unparse(inside[0].args).removeprefix("self").lstrip(", ") if inside else ""
        return f"{node.name}({arguments})"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({ast.unparse(node.args)}){returns}"


def find(name):
    """The exercise called ``module.function``.

    Raises:
        LookupError: naming the exercises that the module has.
    """
    module, _, function = name.partition(".")
    known = module_of(module).exercises
    for exercise in known:
        if exercise.function == function:
            return exercise
    names = ", ".join(exercise.name for exercise in known)
    raise LookupError(f"there is no exercise {name!r}; there are {names}")
