"""Makes the learner's file out of the reference answers: the same module without its answers.

    python -m multigpu.checking.starters

writes ``exercises/*.py`` anew from ``solutions/*.py``.  A file in which an answer has been written
is left alone.  Where the exercise is to mend broken code, ``solutions/broken`` holds the starter.
"""

import ast
import re
import sys
from pathlib import Path

from multigpu.checking.catalog import CHAPTERS
from multigpu.checking.places import Course, find_course

MARK = "# solution only"
Definition = ast.FunctionDef | ast.ClassDef


def starter_for(module: str, course: Course) -> str:
    """What the learner's file of a module holds at first."""
    broken = course.broken(module)
    if broken.is_file():
        return broken.read_text(encoding="utf-8")
    return starter_of((course.solutions / f"{module}.py").read_text(encoding="utf-8"))


def starter_of(source: str) -> str:
    """The starter for a solution's text.

    Functions and methods keep signature and docstring and raise NotImplementedError.  Private ones
    go, and so does every line or statement that ends in ``# solution only``.  The
    ``if __name__ == "__main__":`` part stays as it is.
    """
    lines = source.splitlines()
    edits: list[tuple[int, int, list[str]]] = []  # first line, last line, what replaces them
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            edits += _edits(node, lines)
        elif lines[_end(node) - 1].endswith(MARK) or lines[node.lineno - 1].endswith(MARK):
            edits.append((node.lineno, _end(node), []))
    for first, last, replacement in reversed(edits):
        lines[first - 1 : last] = replacement
    text = "\n".join(line for line in lines if not line.endswith(MARK)) + "\n"
    return re.sub(r"\n{4,}", "\n\n\n", text)


def _edits(node: Definition, lines: list[str]) -> list[tuple[int, int, list[str]]]:
    if node.name.startswith("_") and not node.name.startswith("__"):
        return [(first_line(node), _end(node), [])]
    if isinstance(node, ast.ClassDef):
        methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
        return [edit for method in methods for edit in _edits(method, lines)]
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    if not body:
        return []
    start = _end(node.body[0]) + 1 if body is not node.body else _body_start(node, lines)
    indent = " " * node.body[0].col_offset
    return [(start, _end(node), [f"{indent}raise NotImplementedError"])]


def _body_start(node: ast.FunctionDef, lines: list[str]) -> int:
    """The first line below the signature; comments on top of the body belong to the answer."""
    line = node.body[0].lineno
    while lines[line - 2].lstrip().startswith("#"):
        line -= 1
    return line


def first_line(node: ast.stmt) -> int:
    """The line where a statement begins, decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _end(node: ast.stmt) -> int:
    assert node.end_lineno is not None  # only nodes made by hand have none
    return node.end_lineno


def definitions(source: str) -> dict[str, Definition]:
    """The functions and classes of a module, by name."""
    body = ast.parse(source).body
    return {n.name: n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def text_of(source: str, node: Definition) -> str:
    """A definition as it stands in ``source``."""
    return "\n".join(source.splitlines()[first_line(node) - 1 : _end(node)])


def written_in(source: str, module: str, course: Course) -> list[str]:
    """The functions and classes in a learner's file that are more than the course handed out.

    Raises SyntaxError or ValueError when ``source`` cannot be read.
    """
    nodes, broken = definitions(source), course.broken(module)
    if not broken.is_file():
        return [name for name, node in nodes.items() if is_written(node)]
    handed_out = definitions(broken.read_text(encoding="utf-8"))
    return [
        name
        for name, node in nodes.items()
        if is_written(node) and not (name in handed_out and same_code(node, handed_out[name]))
    ]


def same_code(node: Definition, other: Definition) -> bool:
    """Whether two definitions differ in comments and blank lines at most."""
    try:
        return ast.dump(node) == ast.dump(other)
    except RecursionError:  # nested too deep to have come from us
        return False


def is_written(node: Definition) -> bool:
    """Whether a definition holds more than the starter's ``raise NotImplementedError``."""
    if isinstance(node, ast.ClassDef):
        methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
        return not methods or any(is_written(method) for method in methods)
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if len(body) != 1 or not isinstance(body[0], ast.Raise):  # what is nested deep is not unparsed
        return True
    return not ast.unparse(body[0]).startswith("raise NotImplementedError")


def put_back(source: str, starter: str, function: str) -> str:
    """``source`` with one function as in ``starter``, and everything else as it was."""
    new = text_of(starter, definitions(starter)[function])
    node = definitions(source).get(function)
    lines = source.splitlines()
    if node is not None:
        lines[first_line(node) - 1 : _end(node)] = new.splitlines()
    else:
        main = [n for n in ast.parse(source).body if isinstance(n, ast.If)]
        place = main[-1].lineno - 1 if main else len(lines)
        lines[place:place] = ["", *new.splitlines(), "", ""]
    return "\n".join(lines) + "\n"


def write_starters(course: Course) -> list[str]:
    """Write every exercise file anew, and say of each what became of it."""
    return [_write(course, chapter.module) for chapter in CHAPTERS if _has(course, chapter.module)]


def _has(course: Course, module: str) -> bool:
    return (course.solutions / f"{module}.py").is_file()


def _write(course: Course, module: str) -> str:
    path = course.exercises / f"{module}.py"
    starter = starter_for(module, course)
    if path.is_file():
        source = path.read_text(encoding="utf-8")
        if written := written_in(source, module, course):
            return f"{path.name}: left alone, it holds answers ({', '.join(written)})"
        if source == starter:
            return f"{path.name}: up to date"
    path.parent.mkdir(exist_ok=True)
    path.write_text(starter, encoding="utf-8")
    return f"{path.name}: written"


if __name__ == "__main__":
    sys.stdout.write("\n".join(write_starters(find_course(Path.cwd()))) + "\n")
