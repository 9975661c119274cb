"""The bodies of torch's Python functions, so that the calls inside them can be intercepted.

Each function of torch.nn.functional and the like first asks `has_torch_function(...)` whether
someone overrides it, and if so hands the whole call over. Here the answer has to be: go on, but let
me see the calls you make. So the function is copied with a `has_torch_function` that says no.
"""

from __future__ import annotations

import functools
from types import CellType, FunctionType
from typing import Any

import torch

_QUESTION = "has_torch_function"
# Their parts hand over calls of their own in the name of the whole, and none names a device.
_WHOLE = (torch.unique, torch.unique_consecutive)


class _Names(dict[str, Any]):
    """A module's global names, looked up live, but with nobody overriding anything."""

    def __init__(self, module_names: dict[str, Any]) -> None:
        super().__init__(
            {name: _nobody for name in module_names if name.startswith(_QUESTION)},
            __builtins__=module_names["__builtins__"],
        )
        self._module_names = module_names

    def __missing__(self, name: str) -> Any:
        return self._module_names[name]


def _nobody(*args: Any) -> bool:
    return False


@functools.cache
def body_of(func: FunctionType) -> FunctionType | None:
    """`func` without its question; None if it does not ask and so can be called as it is."""
    if not func.__module__.startswith("torch") or func in _WHOLE:
        return None
    # torch.nn.init asks torch.overrides.has_torch_function...: no name of its own to take away.
    names = func.__code__.co_names
    asks = any(name.startswith(_QUESTION) and name in func.__globals__ for name in names)
    choices = func.__closure__ or ()
    if not asks:
        # max_pool2d and the like choose between two functions that ask, kept in their closure.
        choices = tuple(_choice(cell) for cell in choices)
        if choices == (func.__closure__ or ()):
            return None
    body = FunctionType(
        func.__code__, _Names(func.__globals__), func.__name__, func.__defaults__, choices
    )
    body.__kwdefaults__ = func.__kwdefaults__
    return body


def _choice(cell: CellType) -> CellType:
    function = cell.cell_contents
    body = body_of(function) if isinstance(function, FunctionType) else None
    return cell if body is None else CellType(body)
