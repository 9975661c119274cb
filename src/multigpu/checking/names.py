"""Finds forbidden names in the part of a module that an exercise uses, without running it."""

import ast
from collections.abc import Iterator
from functools import lru_cache


@lru_cache
def first_refused_name(
    source: str, function: str, refused: tuple[str, ...]
) -> tuple[str, int] | None:
    """The first forbidden name that the exercise uses and its line, or None.

    Looks into ``function`` and every function and class of the module that it reaches.  Words in
    comments and docstrings, unused imports, the ``__main__`` part and the types that isinstance
    asks for count for nothing.  A name that a function sets itself is its own, whatever was
    imported under it.
    """
    tree = ast.parse(source)
    imported = dict(_aliases(tree))
    found = [
        (name, int(getattr(node, "lineno", 0)))
        for statement in reached(tree, function)
        for definition in _scopes(statement)
        for aliases in [_without(_own_names(definition), imported)]
        for node in _doing(definition)
        for full in _full_names(node, aliases)
        for name in refused
        if full == name or full.startswith(f"{name}.")
    ]
    return min(found, key=lambda pair: pair[1], default=None)


def _scopes(statement: ast.stmt) -> list[ast.AST]:
    """The statement itself; of a class its methods and the rest, for each has names of its own."""
    if not isinstance(statement, ast.ClassDef):
        return [statement]
    return [*statement.decorator_list, *statement.bases, *statement.keywords, *statement.body]


def _doing(definition: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a definition, without the types in ``isinstance(value, types)``."""
    waiting = [definition]
    while waiting:
        node = waiting.pop()
        yield node
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            waiting += node.args[:1]
        else:
            waiting += ast.iter_child_nodes(node)


def _own_names(definition: ast.AST) -> set[str]:
    """The parameters of a function and the names that it sets; those of functions in it too."""
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        return set()
    nodes = list(ast.walk(definition))
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return stored | {n.arg for n in nodes if isinstance(n, ast.arg)}


def _without(own: set[str], aliases: dict[str, str]) -> dict[str, str]:
    return {name: full for name, full in aliases.items() if name not in own}


def _aliases(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """What imported names mean: ``n`` -> ``torch.nn`` after ``from torch import nn as n``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                head = item.name.partition(".")[0]
                yield (item.asname, item.name) if item.asname else (head, head)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for item in node.names:
                yield item.asname or item.name, f"{node.module}.{item.name}"


def reached(tree: ast.Module, function: str) -> list[ast.stmt]:
    """The statements of the module that the exercise depends on, itself first."""
    statements: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        for name in _defined(statement):
            statements.setdefault(name, []).append(statement)
    reached: list[ast.stmt] = []
    waiting = [function]
    while waiting:
        for node in statements.pop(waiting.pop(), []):
            reached.append(node)
            waiting += [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
    return reached


def _defined(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of the module defines; imports are followed by aliases."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        for child in ast.walk(node):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                yield child.id


def _full_names(node: ast.AST, aliases: dict[str, str]) -> Iterator[str]:
    """The dotted names that one node stands for."""
    if isinstance(node, ast.Import):
        yield from (item.name for item in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{item.name}" for item in node.names)
    elif isinstance(node, ast.Attribute | ast.Name | ast.Call):
        full = _resolve(node, aliases)
        if full:
            yield full


def _resolve(node: ast.AST, aliases: dict[str, str]) -> str | None:
    """``nn.parallel`` as ``torch.nn.parallel``; also through getattr and import_module."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _resolve(node.value, aliases)
        return f"{owner}.{node.attr}" if owner else None
    if not isinstance(node, ast.Call):
        return None
    texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    called = ast.unparse(node.func).rpartition(".")[2]
    if called in ("import_module", "__import__") and texts:
        return texts[0]
    if called == "getattr" and len(node.args) > 1 and texts:
        owner = _resolve(node.args[0], aliases)
        return f"{owner}.{texts[0]}" if owner else None
    return None
