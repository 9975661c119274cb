"""One program out of two: what a model calls for few rows, and what it calls for many.

Both must be the same calls. A number among their arguments that differs follows from the number of
rows, and the two together say how: 97 and 3 are `rows`, 388 and 12 are `4*rows`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from multigpu.training.cutting.program import Program, Rows, Shape, Step
from multigpu.training.cutting.refusing import Refused

MANY, FEW = 97, 3  # numbers that other dimensions hardly have; BatchNorm wants more than one


def generalise(many: Program, few: Program) -> Program:
    """The program for any number of rows.  Raises Refused where there is no such program."""
    for one, other in zip(many.steps, few.steps, strict=False):
        if (one.module, one.name, one.where) != (other.module, other.name, other.where):
            raise Refused(_other_calls(one, other))
    if len(many.steps) != len(few.steps):
        raise Refused(_other_calls(max(many.steps, few.steps, key=len)[-1], None))
    steps = tuple(_step(one, other) for one, other in zip(many.steps, few.steps, strict=True))
    shapes = {number: _shape(many.shapes[number], few.shapes[number]) for number in many.shapes}
    saved = tuple(_bytes(one, other) for one, other in zip(many.saved, few.saved, strict=True))
    return dataclasses.replace(
        many,
        steps=steps,
        shapes=shapes,
        saved=saved,
        outputs=_general(many.outputs, few.outputs, "what forward returns"),
        joined=many.joined | few.joined,
    )


def number_of_rows(many: float, few: float) -> Rows | None:
    """How a number follows from the rows, given its value for many and for few."""
    if isinstance(many, int) and isinstance(few, int):
        times, rest = divmod(many - few, MANY - FEW)
        return None if rest else Rows(times, many - times * MANY)
    if many and math.isclose(many * MANY, few * FEW, rel_tol=1e-9):
        return Rows(many * MANY, 0, inverse=True)
    slope = (many - few) / (MANY - FEW)
    whole = math.isclose(slope * MANY, many, rel_tol=1e-9)
    return Rows(slope, 0) if whole else None


def _step(one: Step, other: Step) -> Step:
    args = _general(one.args, other.args, str(one))
    return dataclasses.replace(one, args=args, kwargs=_general(one.kwargs, other.kwargs, str(one)))


def _general(many: Any, few: Any, where: str) -> Any:
    """One tree of arguments out of two."""
    if type(many) is not type(few):
        raise Refused(_other_arguments(where, many, few))
    if isinstance(many, tuple | list) and len(many) == len(few):
        parts = [_general(a, b, where) for a, b in zip(many, few, strict=True)]
        named = hasattr(many, "_fields")
        return type(many)(*parts) if named else type(many)(parts)
    if isinstance(many, dict) and many.keys() == few.keys():
        return {name: _general(many[name], few[name], where) for name in many}
    if isinstance(many, slice):
        parts = [_general(getattr(many, k), getattr(few, k), where) for k in _SLICE]
        return slice(*parts)
    if many is few or many == few:
        return many
    if isinstance(many, int | float) and not isinstance(many, bool):
        found = number_of_rows(many, few)
        if found is not None:
            return found
    raise Refused(_other_arguments(where, many, few))


_SLICE = ("start", "stop", "step")


def _shape(many: Shape, few: Shape) -> Shape:
    sizes = tuple(_size(a, b) for a, b in zip(many.sizes, few.sizes, strict=True))
    return dataclasses.replace(many, sizes=sizes, numbers=_size(many.numbers, few.numbers))


def _size(many: int, few: int) -> Any:
    """A size for any number of rows."""
    if many == few:
        return many
    return number_of_rows(many, few) or Rows(many / MANY, 0)


def _bytes(many: dict[int, Any], few: dict[int, Any]) -> dict[int, Any]:
    """What a step keeps for backward. A kernel may keep other things for few rows."""
    if len(many) != len(few):
        return {storage: Rows(size / MANY, 0) for storage, size in many.items()}
    pairs = zip(many.items(), few.values(), strict=True)
    return {storage: _size(size, other) for (storage, size), other in pairs}


def _other_calls(one: Step, other: Step | None) -> str:
    instead = f" and {other}" if other is not None else ""
    return (
        f"what forward calls depends on the number of rows: {one}{instead}, for {MANY} rows and "
        f"for {FEW}. A last batch may be smaller, so there must be one list of steps for all: use "
        "operations on the whole batch in the place of a loop or an `if`."
    )


def _other_arguments(where: str, many: Any, few: Any) -> str:
    return (
        f"{where} depends on the number of rows in a way that cannot be followed, or changes from "
        f"call to call: {many!r} for {MANY} rows, {few!r} for {FEW}. "
        "Compute it with tensors, or outside forward."
    )
