"""The options of ``multigpu train``: one for each field of `TrainConfig`, with its own words.

The line below a field in training/config.py is what ``--help`` says about it, so that the two
cannot differ.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

METAVARS = {int: "N", float: "X", str: "NAME"}


def add_fields(
    parser: argparse._ArgumentGroup, config: type, *, per_task: Mapping[str, Mapping[str, Any]]
) -> None:
    """An option for every field of the dataclass `config`; one that is not given is not set.

    `per_task`: what each task sets instead of the fields' own defaults, by the task's name.
    """
    kinds = typing.get_type_hints(config)
    says = docs_of_fields(config)
    for field in dataclasses.fields(config):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            dest=field.name,
            default=argparse.SUPPRESS,
            help=f"{says[field.name]}{default_of(field, per_task)}".replace("%", "%%"),
            **how_to_read(kinds[field.name]),
        )


def given_fields(options: argparse.Namespace, config: type) -> dict[str, Any]:
    """The fields of `config` that the command line sets."""
    names = (field.name for field in dataclasses.fields(config))
    return {name: getattr(options, name) for name in names if hasattr(options, name)}


def as_options(message: str, config: type) -> str:
    """``batch_size=100`` in a message as it is typed: ``--batch-size 100``."""
    names = "|".join(field.name for field in dataclasses.fields(config))

    def typed(found: re.Match[str]) -> str:
        option, value = found[1].replace("_", "-"), found[2].strip("'\"")
        switches = {"True": f"--{option}", "False": f"--no-{option}", "None": f"no --{option}"}
        return switches.get(value, f"--{option} {value}")

    return re.sub(rf"\b({names})=('[^']*'|\"[^\"]*\"|[-+.\w]*\w)", typed, message)


def docs_of_fields(config: type) -> dict[str, str]:
    """The string that stands below each field of a dataclass, on one line."""
    [definition] = ast.parse(inspect.getsource(config)).body
    assert isinstance(definition, ast.ClassDef)
    said: dict[str, str] = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            said[field.target.id] = " ".join(str(text.value.value).split())
    return said


def default_of(field: dataclasses.Field[Any], per_task: Mapping[str, Mapping[str, Any]]) -> str:
    """`` (default: 128; flights: 512)``; nothing where the field's own words say it."""
    own = {
        task: settings[field.name]
        for task, settings in per_task.items()
        if settings.get(field.name, field.default) != field.default
    }
    said = {} if field.default is None else {"default": field.default}
    parts = [f"{name}: {plain(value)}" for name, value in {**said, **own}.items()]
    return f" ({'; '.join(parts)})" if parts else ""


def plain(value: Any) -> str:
    """A default as it is typed."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"{value}"


def how_to_read(kind: Any) -> dict[str, Any]:
    """What argparse is told about a field of this type; ``int | None`` is read as ``int``."""
    members = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    first = next(member for member in members if member is not type(None))
    if first is bool:
        return {"action": argparse.BooleanOptionalAction}
    return {"type": first, "metavar": METAVARS[first]}
