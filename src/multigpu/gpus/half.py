"""Half precision where the CPU has no kernel for it: computed in float32, rounded at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

_HALF = (torch.float16, torch.bfloat16)
_COMPLAINTS = ("not implemented for 'Half'", "not implemented for 'BFloat16'", "primitive")


def run(operator: Callable[..., Any], args: Any, kwargs: Any, *, mutates: bool) -> Any:
    """`operator(*args, **kwargs)` on plain tensors, with this way out."""
    try:
        return operator(*args, **kwargs)
    except RuntimeError as error:
        halves = {
            leaf.dtype
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, torch.Tensor) and leaf.dtype in _HALF
        }
        if mutates or not halves or not any(text in str(error) for text in _COMPLAINTS):
            raise
    args, kwargs = tree_map(_wider, (args, kwargs))
    dtype = halves.pop()
    return tree_map(lambda value: _narrower(value, dtype), operator(*args, **kwargs))


def _wider(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in _HALF:
        return value.float()
    return torch.float32 if value in _HALF else value


def _narrower(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype is torch.float32:
        return value.to(dtype)
    return value
