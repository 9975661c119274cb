"""What is in the text of an exercise module, found without running it.

What a learner has written, what of the module an exercise uses, and the starter: a solution's text
without its answers.
"""

import ast
import contextlib
import hashlib
import os
import re
import symtable
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from importlib.util import decode_source
from itertools import takewhile
from pathlib import Path

from multigpu.checking.catalog import Course

MARK = "# solution only"
MAIN = {ast.dump(ast.parse(text, mode="eval").body) for text in ("__name__", "'__main__'")}
Definition = ast.FunctionDef | ast.ClassDef
Import = ast.Import | ast.ImportFrom


@lru_cache
def definitions(source: str) -> dict[str, Definition]:
    """The functions and classes of a module, by name."""
    body = ast.parse(source).body
    return {n.name: n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def first_line(node: ast.stmt) -> int:
    """The line where a statement begins, decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def last_line(node: ast.stmt) -> int:
    """The line where a statement ends."""
    assert node.end_lineno is not None  # only nodes made by hand have none
    return node.end_lineno


def text_of(source: str, node: Definition) -> str:
    """A definition as it is written in ``source``."""
    return "\n".join(source.splitlines()[first_line(node) - 1 : last_line(node)])


@lru_cache
def return_lines(source: str) -> dict[int, int]:
    """Every line of a return statement, with the line on which the statement begins."""
    return {
        line: node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Return)
        for line in range(node.lineno, last_line(node) + 1)
    }


@lru_cache
def imported_modules(source: str) -> set[str]:
    """The modules that import statements name, anywhere in a module, and the packages of these."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names | {name[:end] for name in names for end in range(len(name)) if name[end] == "."}


def digest_of(files: Iterable[Path]) -> str:
    """A hash of the names of files and of what is in them, without those that cannot be read."""
    digest = hashlib.sha256()
    for path in sorted(files):
        with contextlib.suppress(OSError):
            content = path.read_bytes()
            digest.update(os.fsencode(path.name) + f" {len(content)} ".encode() + content)
    return digest.hexdigest()


@cache
def digest_of_package() -> str:
    """A hash of the files of this package, which compares answers."""
    return digest_of(Path(__file__).parent.glob("*.py"))


def digest_of_checks(course: Course, module: str) -> str:
    """A hash of all that decides about a module's answers: an update may make it stricter."""
    return digest_of_package() + digest_of(course.checks_of(module))


# --- what a learner has written ------------------------------------------------------------------


def is_written(node: Definition) -> bool:
    """Whether a definition holds more than the starter's ``raise NotImplementedError``."""
    if isinstance(node, ast.ClassDef):
        methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
        return not methods or any(is_written(method) for method in methods)
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if len(body) != 1 or not isinstance(body[0], ast.Raise):  # what is nested deep is not unparsed
        return True
    return not ast.unparse(body[0]).startswith("raise NotImplementedError")


def written_in(source: str, module: str, course: Course) -> list[str]:
    """The functions and classes in a learner's file that are more than the course handed out.

    An exercise may also be bound by an assignment, ``split = functools.partial(...)``, or below an
    ``if`` or a ``try``.

    Raises SyntaxError or ValueError when ``source`` cannot be read.
    """
    broken, solution = course.broken(module), course.solutions / f"{module}.py"
    # In a starter of broken code more than comments has to be other than it was handed out.
    text = broken.read_text(encoding="utf-8") if broken.is_file() else ""
    handed_out = {ast.dump(node) for node in at_import(ast.parse(text).body)}
    tasks = definitions(solution.read_text(encoding="utf-8"))
    written = [
        name
        for node in at_import(ast.parse(source).body)
        for name in names_defined(node)
        if (is_written(node) if isinstance(node, Definition) else name in tasks)
        and ast.dump(node) not in handed_out
    ]
    return list(dict.fromkeys(written))


def at_import(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported, those below ``if`` or ``try`` included."""
    for node in body:
        if is_main(node):
            continue
        yield node
        if not isinstance(node, Definition):
            handlers = [handler.body for handler in getattr(node, "handlers", ())]
            blocks = [getattr(node, name, ()) for name in ("body", "orelse", "finalbody")]
            for block in (*blocks, *handlers):
                yield from at_import(block)


def fingerprint(source: str, function: str) -> str | None:
    """A hash of the code of an exercise; None when the module cannot be read.

    The code is the function, the statements that run whenever the module is imported, and
    everything in the module that these reach, imports included; comments and blank lines do not
    count. Neither does what the decorators, default values and class bodies of other definitions
    change at import, and what a function does that an assignment only passes on, as in
    ``_ = setattr(X, "f", own)``.
    """
    try:
        tree = ast.parse(source)
        always = [node for node in tree.body if has_effects(node)]
        used = [name for node in always for part in run_by(node) for name in names_used(part)]
        code = {*always, *reached(tree, function, *used)}
        needed = {name for node in code for name in names_used(node)}
        code |= {n for n in tree.body if isinstance(n, Import) and names_bound(n) & needed}
        text = "\n".join(ast.dump(node) for node in tree.body if node in code)
    except (SyntaxError, ValueError, RecursionError):  # the last: nested too deep
        return None
    return hashlib.sha256(text.encode()).hexdigest()


def is_text(node: ast.stmt) -> bool:
    """Whether this is a docstring, or as good as one."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_main(node: ast.stmt) -> bool:
    """Whether this is the part of a module that does not run at import."""
    if not isinstance(node, ast.If) or node.orelse or not isinstance(node.test, ast.Compare):
        return False
    # (Compared as trees, because what is nested deep cannot be written as text.)
    sides = {ast.dump(side) for side in (node.test.left, *node.test.comparators)}
    return isinstance(node.test.ops[0], ast.Eq) and sides == MAIN


def has_effects(node: ast.stmt) -> bool:
    """Whether a statement may do more at import than to bind names of its module.

    An assignment may if it calls something, or if it changes an attribute or an item.
    """
    if isinstance(node, Import):
        return node.names[0].name == "*"  # which may bind any name
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return stores_elsewhere(node) or any(calls_of(node))
    return not (names_defined(node) or is_text(node) or is_main(node))


def stores_elsewhere(node: ast.stmt) -> bool:
    """Whether an assignment changes an attribute or an item."""
    parts = [n for n in ast.walk(node) if isinstance(n, ast.Attribute | ast.Subscript)]
    return any(isinstance(part.ctx, ast.Store) for part in parts)


def calls_of(node: ast.AST) -> Iterator[ast.Call]:
    """The calls that a statement makes when it runs: not those in a lambda."""
    if isinstance(node, ast.Call):
        yield node
    for part in ast.iter_child_nodes(node):
        if not isinstance(part, ast.Lambda):
            yield from calls_of(part)


def run_by(node: ast.stmt) -> list[ast.stmt]:
    """What a statement with effects runs.

    Of ``split = partial(_own)`` that is ``partial`` alone: ``_own`` belongs to ``split``.
    """
    if not names_defined(node) or stores_elsewhere(node):
        return [node]
    return [ast.Expr(call.func) for call in calls_of(node)]


# --- starters ------------------------------------------------------------------------------------


def starter_for(module: str, course: Course) -> str:
    """What the learner's file of a module holds at first."""
    broken = course.broken(module)
    if broken.is_file():  # the exercise is to fix broken code
        return broken.read_text(encoding="utf-8")
    return starter_of((course.solutions / f"{module}.py").read_text(encoding="utf-8"))


def write_starter(module: str, course: Course) -> str:
    """Write the learners' file of a module; returns whether it was "written" or "up to date".

    Raises ValueError where somebody has written answers into it, or where it cannot be read.
    """
    path, starter = course.exercises / f"{module}.py", starter_for(module, course)
    if path.is_file():
        try:
            source = decode_source(path.read_bytes())
            written = written_in(source, module, course)
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"{path} cannot be read: {error}. Move it away first.") from None
        if written:
            raise ValueError(f"{path} holds answers ({', '.join(written)}). Move it away first.")
        if source == starter:
            return "up to date"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(starter, encoding="utf-8")
    return "written"


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
        elif lines[last_line(node) - 1].endswith(MARK) or lines[node.lineno - 1].endswith(MARK):
            edits.append((node.lineno, last_line(node), []))
    for first, last, replacement in reversed(edits):
        lines[first - 1 : last] = replacement
    text = "\n".join(line for line in lines if not line.endswith(MARK)) + "\n"
    return re.sub(r"\n{4,}", "\n\n\n", text)


def _edits(node: Definition, lines: list[str]) -> list[tuple[int, int, list[str]]]:
    if node.name.startswith("_") and not node.name.startswith("__"):
        return [(first_line(node), last_line(node), [])]
    if isinstance(node, ast.ClassDef):
        methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
        return [edit for method in methods for edit in _edits(method, lines)]
    start = node.body[0].lineno
    if ast.get_docstring(node, clean=False) is not None:
        if len(node.body) == 1:
            return []
        start = last_line(node.body[0]) + 1
    else:  # comments on top of the body belong to the answer
        while lines[start - 2].lstrip().startswith("#"):
            start -= 1
    indent = " " * node.body[0].col_offset
    return [(start, last_line(node), [f"{indent}raise NotImplementedError"])]


def put_back(source: str, starter: str, function: str) -> str:
    """``source`` with one function as in ``starter``, and everything else as it was.

    Imports that the function needs are added where ``source`` has no such name.
    """
    task, node = definitions(starter)[function], definitions(source).get(function)
    new, lines, body = text_of(starter, task), source.splitlines(), ast.parse(source).body
    opening = takewhile(lambda n: is_text(n) or getattr(n, "module", "") == "__future__", body)
    top = max(map(last_line, opening), default=0)
    if node is not None:
        lines[first_line(node) - 1 : last_line(node)] = new.splitlines()
    else:
        main = [n for n in body if is_main(n)]
        place = main[-1].lineno - 1 if main else len(lines)
        lines[place:place] = ["", *new.splitlines(), "", ""]
    bound = {name for statement in body for name in names_bound(statement)}
    missing = set(names_used(task)) - bound
    imports = [n for n in ast.parse(starter).body if isinstance(n, Import)]
    lines[top:top] = [ast.unparse(each) for each in imports if names_bound(each) & missing]
    return "\n".join(lines) + "\n"


def names_bound(statement: ast.stmt) -> set[str]:
    """The names that a statement binds in its module, those of imports included."""
    symbols = symtable.symtable(ast.unparse(statement), "", "exec").get_symbols()
    return {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}


# --- what an exercise uses -----------------------------------------------------------------------


def reached(tree: ast.Module, *names: str) -> list[ast.stmt]:
    """The definitions in the module that these names depend on; with one name, its own first."""
    statements: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        for name in names_defined(statement):
            statements.setdefault(name, []).append(statement)
    reached, waiting = [], [*names]
    while waiting:
        for node in statements.pop(waiting.pop(), []):
            reached.append(node)
            waiting += names_used(node)
    return reached


def names_defined(statement: ast.stmt) -> list[str]:
    """The names that a function, a class or an assignment defines.  Other statements have none.

    Those of an assignment are on its left, without those of a comprehension on its right.
    """
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        targets = [statement.target]
    nodes = [n for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
    return [node.id for node in nodes if isinstance(node.ctx, ast.Store)]


def names_used(statement: ast.stmt) -> list[str]:
    """The names that a statement takes from its module, as often as it has them."""
    used = taken(symtable.symtable(ast.unparse(statement), "", "exec"))
    return [n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id in used]


def taken(scope: symtable.SymbolTable) -> set[str]:
    """The names that a piece of code takes from its module, and not from one of its functions.

    In the body of a class, `Layer = Layer` reads the one of the module.
    """
    inside = (taken(part) for part in scope.get_children())
    in_class = scope.get_type() == "class"
    used = [s for s in scope.get_symbols() if s.is_referenced() and (s.is_global() or in_class)]
    return {s.get_name() for s in used}.union(*inside)
