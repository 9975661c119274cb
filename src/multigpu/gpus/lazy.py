"""Lazy modules (nn.LazyLinear, ...): parameters that have a device before they have a shape.

An uninitialised parameter stays a plain tensor here; the GPU it is meant for is noted on it as an
empty tensor there, `_on_gpu`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from multigpu.gpus.calls import Args, Kwargs, call, takes_over
from multigpu.gpus.patches import Patches
from multigpu.gpus.tensor import VirtualTensor

# Properties, whose getters are functions of torch like any other.
_data: Any = torch.Tensor.data
_device: Any = torch.Tensor.device


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is an uninitialised parameter or buffer."""
    return isinstance(tensor, UninitializedTensorMixin)


def moved(tensor: Any, args: Args, kwargs: Kwargs) -> Any:
    """`tensor.to(...)` of an uninitialised tensor: one for another device or dtype."""
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    made = type(tensor)(tensor.requires_grad, dtype=dtype or tensor.data.dtype)
    return for_device(made, tensor.data.device if device is None else device)


def for_device(tensor: Any, device: Any) -> Any:
    """Note on `tensor` which device it is for."""
    empty = torch.empty(0, device=device, dtype=tensor.dtype)
    if isinstance(empty, VirtualTensor):
        tensor._on_gpu = empty
    return tensor


def set_data(tensor: torch.Tensor, new: torch.Tensor) -> bool:
    """`tensor.data = new` where both are uninitialised; false if they are not."""
    if not (is_lazy(tensor) and is_lazy(new)):
        return False
    tensor.__dict__.pop("_on_gpu", None)
    tensor.__dict__.update(new.__dict__)
    return "_on_gpu" in new.__dict__


@takes_over(_data.__get__)
def get_data(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`p.data`, which tells an uninitialised parameter's device and dtype."""
    kept = args[0].__dict__.get("_on_gpu")
    return call(func, [type(args[0])], args, kwargs) if kept is None else kept


@takes_over(_device.__get__)
def get_device(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`p.device` of a tensor that is not virtual, but perhaps will be."""
    if isinstance(args[0], VirtualTensor):
        return args[0].device
    kept = args[0].__dict__.get("_on_gpu")
    return func(*args, **kwargs) if kept is None else kept.device


def install(patches: Patches) -> None:
    """Let uninitialised tensors be made for a GPU, and become tensors there."""
    for cls in (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer):
        patches.set(cls, "__new__", staticmethod(_new(cls.__new__)))
    patches.set(UninitializedTensorMixin, "materialize", _materialize)


def _new(plain_new: Any) -> Any:
    def new(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        return for_device(plain_new(cls, *args, device="cpu", **kwargs), device)

    return new


def _materialize(tensor: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
    """What UninitializedTensorMixin.materialize does, for a tensor that may change its class."""
    becomes = tensor.cls_to_become
    known = tensor.data
    tensor.__dict__.pop("_on_gpu", None)
    tensor.data = torch.empty(
        shape, device=known.device if device is None else device, dtype=dtype or known.dtype
    )
    if not isinstance(tensor, VirtualTensor):
        tensor.__class__ = becomes
