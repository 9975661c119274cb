"""What may stand in a checkpoint: tensors and plain values, so that loading it runs no code."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

PLAIN = (type(None), bool, int, float, str, bytes)


def plain(value: Any, place: str = "state") -> Any:
    """`value` with every tensor on the CPU and detached; for `torch.load(weights_only=True)`.

    Raises TypeError, with the place, for anything that could be saved but not loaded again, such
    as a NumPy number or an object of a class.
    """
    if isinstance(value, torch.Tensor):
        return compact(value.detach().cpu())
    if type(value) in PLAIN:
        return value
    if isinstance(value, dict) and type(value) in (dict, OrderedDict):
        items = {key: plain(item, f"{place}[{key!r}]") for key, item in value.items()}
        for key in items:
            if type(key) not in PLAIN:
                raise TypeError(f"{place}: the key {key!r} is a {type(key).__name__}, not plain")
        return like(value, items)
    if type(value) in (list, tuple):
        return type(value)(plain(item, f"{place}[{i}]") for i, item in enumerate(value))
    raise TypeError(
        f"{place} is a {type(value).__module__}.{type(value).__name__}: a checkpoint takes only "
        "tensors, numbers, strings, lists, tuples and dicts. Convert it first, for example with "
        "float(...)."
    )


def like(original: dict[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    """`items` in a dict as `original` is: a model's state carries its versions as an attribute."""
    if not isinstance(original, OrderedDict):
        return items
    same = OrderedDict(items)
    same.__dict__.update(original.__dict__)
    return same


def compact(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that does not keep more than itself: saving a view saves all that it looks into."""
    own = tensor.numel() * tensor.element_size()
    if tensor.layout is torch.strided and tensor.untyped_storage().nbytes() > own:
        return tensor.clone()
    return tensor
