"""Filling with a 0-dim tensor: its number is fetched from wherever it is, as under CUDA."""

from __future__ import annotations

from typing import Any

import torch

from multigpu.gpus.copies import place_of, to_copy
from multigpu.gpus.devices import CPU
from multigpu.gpus.operators import run_plainly
from multigpu.gpus.plans import Plan, special
from multigpu.gpus.tensor import VirtualTensor

_to_copy = torch.ops.aten._to_copy.default


@special("fill", "fill_", "index_put", "index_put_", "_index_put_impl_")
def fill(plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`tensor.fill_(number)` and `tensor[indices] = number`, the number being on another device."""
    position = next(i for i, name in enumerate(plan.argument_names) if name.startswith("value"))
    if len(args) > position:
        number, place = args[position], place_of(args[0])
        if isinstance(number, VirtualTensor) and not number.ndim and number._gpu is not place:
            device = CPU if place is None else place.carrier
            moved = to_copy(plan, _to_copy, (number,), {"device": device})
            args = (*args[:position], moved, *args[position + 1 :])
    return run_plainly(plan, args, kwargs)
