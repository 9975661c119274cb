"""Rows as a model takes them: on its device, as one argument or several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


def call(model: Callable[..., Any], inputs: Any) -> Any:
    """`model` on its inputs: a tuple or list as several arguments, a dict by name."""
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(inputs)


def to_device(values: Any, device: torch.device) -> Any:
    """Every tensor in `values` on `device`; tuples, lists and dicts are kept.

    From pinned memory the copy runs beside the program, which does not wait for it.
    """
    if isinstance(values, Tensor):  # most often; tree_map would take 5 µs to find that out
        return _moved(values, device)
    return tree_map(lambda value: _moved(value, device), values)


def _moved(value: Any, device: torch.device) -> Any:
    if not isinstance(value, Tensor) or value.device == device:
        return value
    return value.to(device, non_blocking=value.is_pinned())
