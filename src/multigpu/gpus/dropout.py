"""Dropout: the one common operator that draws random numbers and cannot be told from where."""

from __future__ import annotations

from typing import Any

import torch

from multigpu.gpus.plans import Plan, special
from multigpu.gpus.tensor import VirtualTensor


@special("native_dropout")
def native_dropout(plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Dropout: the result and the mask of what was kept."""
    shell, probability, train = (*args, *kwargs.values())
    if not isinstance(shell, VirtualTensor):
        return func(*args, **kwargs)
    data, gpu = shell._data, shell._gpu
    if train is False:
        return VirtualTensor(data.clone(), gpu), VirtualTensor(
            torch.ones_like(data, dtype=torch.bool), gpu
        )
    kept = torch.empty_like(data, dtype=torch.bool)
    kept.bernoulli_(1 - probability, generator=gpu.generator)
    scale = 0.0 if probability == 1 else 1 / (1 - probability)
    return VirtualTensor(data * kept * scale, gpu), VirtualTensor(kept, gpu)
