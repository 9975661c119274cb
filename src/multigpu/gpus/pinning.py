"""Pinned memory: host memory that a real GPU reads faster. Here it is only marked as such."""

from __future__ import annotations

from typing import Any

import torch

from multigpu.gpus import active
from multigpu.gpus.calls import Args, Kwargs, pinned, takes_over
from multigpu.gpus.tensor import VirtualTensor


@takes_over(torch.Tensor.is_pinned)
def is_pinned(func: Any, args: Args, kwargs: Kwargs) -> bool:
    """`tensor.is_pinned()`."""
    if active.virtual_machine() is None:
        return bool(func(*args, **kwargs))
    tensor = args[0]
    if isinstance(tensor, VirtualTensor) or tensor.layout is not torch.strided:
        return False
    return getattr(tensor.untyped_storage(), "_virtually_pinned", False)


@takes_over(torch.Tensor.pin_memory)
def pin_memory(func: Any, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """`tensor.pin_memory()`: a copy in pinned memory, or the tensor itself if it is there."""
    tensor: torch.Tensor = args[0]
    if active.virtual_machine() is None:
        return func(*args, **kwargs)  # type: ignore[no-any-return]
    if isinstance(tensor, VirtualTensor):
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    return tensor if is_pinned(None, (tensor,), {}) else pinned(tensor.clone())
