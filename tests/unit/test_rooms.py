"""The rooms of the package stand in an order, and a room imports only from rooms before it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "multigpu"
# The command comes last: cli.py is its door, commands/ what is behind it.
ROOMS = ("pictures", "gpus", "ranks", "data", "training", "scaling", "checking", "commands", "cli")
DOORS = ("__init__", "__main__")  # of the whole package: they may name any room


def room_of(module: str) -> str:
    """``multigpu.gpus.memory`` is in the room ``gpus``; the package itself has none."""
    return module.partition(".")[2].partition(".")[0]


def modules() -> dict[str, Path]:
    named = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        named[".".join(parts)] = path
    return named


def imports(module: str, tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The full name of everything that ``module`` imports, wherever in the file, with the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")[: -node.level] if node.level else []
            source = ".".join([*package, *filter(None, [node.module])])
            for alias in node.names:
                yield f"{source}.{alias.name}", node.lineno


def imported_rooms(module: str, tree: ast.AST) -> list[tuple[str, int]]:
    return [
        (room_of(name), line)
        for name, line in imports(module, tree)
        if name.startswith("multigpu.") and room_of(name) in ROOMS
    ]


def test_every_module_is_in_a_known_room() -> None:
    assert {room_of(module) for module in modules()} <= {*ROOMS, *DOORS}


@pytest.mark.parametrize("module", [name for name in modules() if room_of(name) in ROOMS])
def test_a_room_imports_only_from_rooms_before_it(module: str) -> None:
    allowed = ROOMS[: ROOMS.index(room_of(module)) + 1]
    tree = ast.parse(modules()[module].read_text())
    wrong = [found for found in imported_rooms(module, tree) if found[0] not in allowed]
    assert not wrong, f"{module} imports from rooms that come after it (room, line): {wrong}"


@pytest.mark.parametrize("module", [name for name in modules() if room_of(name) == "pictures"])
def test_pictures_know_only_plain_records(module: str) -> None:
    tree = ast.parse(modules()[module].read_text())
    assert not {name.split(".")[0] for name, _ in imports(module, tree)} & {"torch", "numpy"}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import multigpu.checking.judge", "checking"),
        ("from multigpu import checking", "checking"),
        ("from multigpu.checking import judge", "checking"),
        ("from ..checking import judge", "checking"),
        ("from .. import checking", "checking"),
        ("def f():\n    from multigpu.cli import main", "cli"),
    ],
)
def test_no_way_to_write_an_import_is_overlooked(source: str, found: str) -> None:
    assert [room for room, _ in imported_rooms("multigpu.gpus.x", ast.parse(source))] == [found]
