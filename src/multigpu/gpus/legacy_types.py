"""The old tensor types: `tensor.type()`, `torch.cuda.FloatTensor`, `tensor.new()`."""

from __future__ import annotations

from typing import Any

import torch

from multigpu.gpus import active, errors
from multigpu.gpus.calls import Args, Kwargs, call, run_in_core, takes_over
from multigpu.gpus.moves import moved
from multigpu.gpus.patches import Patches
from multigpu.gpus.tensor import VirtualTensor

_DTYPES = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Bool": torch.bool,
}


class _CudaType(type):
    """torch.cuda.FloatTensor and its like: makes tensors on the current GPU, recognises them."""

    dtype: torch.dtype

    def __call__(cls, *values: Any) -> torch.Tensor:
        if values and not all(isinstance(value, int) for value in values):
            return torch.tensor(values[0], dtype=cls.dtype, device="cuda")
        return torch.empty(values or (0,), dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, VirtualTensor) and instance.dtype == cls.dtype


_CUDA_TYPES = {
    f"{name}Tensor": _CudaType(f"{name}Tensor", (), {"dtype": dtype, "__module__": "torch.cuda"})
    for name, dtype in _DTYPES.items()
}


def install(patches: Patches) -> None:
    """Let `torch.cuda.FloatTensor` and the like be the virtual GPUs' types."""
    for name, cuda_type in _CUDA_TYPES.items():
        patches.set(torch.cuda, name, cuda_type)


@takes_over(torch.Tensor.type)
def type_(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`tensor.type()` names the type; `tensor.type(other)` converts to it."""
    tensor = args[0]
    wanted = args[1] if len(args) > 1 else kwargs.get("dtype")
    if wanted is None:
        if not isinstance(tensor, VirtualTensor):
            return func(tensor)
        return errors.type_name(tensor)
    if active.virtual_machine() is None and not isinstance(tensor, VirtualTensor):
        return func(*args, **kwargs)
    if isinstance(wanted, torch.dtype):
        return tensor.to(wanted)
    if isinstance(wanted, _CudaType):
        wanted = f"torch.cuda.{wanted.__name__}"
    name = wanted if isinstance(wanted, str) else f"{wanted.__module__}.{wanted.__name__}"
    dtype = _DTYPES.get(name.rpartition(".")[2].removesuffix("Tensor"))
    if dtype is None:
        raise ValueError(f"invalid type: '{name}'")
    device: Any = "cpu"
    if name.startswith("torch.cuda."):
        device = tensor.device if tensor.is_cuda else "cuda"
    return moved(tensor, device, dtype)


@takes_over(torch.Tensor.new)
def new(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`tensor.new(...)`: an uninitialised or given tensor of the same type and device."""
    tensor, *rest = args
    if not isinstance(tensor, VirtualTensor):
        return call(func, [type(tensor)], args, kwargs)
    if tensor.is_sparse and len(rest) > 1:  # (indices, values, size), as torch.optim uses it
        return run_in_core(torch.sparse_coo_tensor, args[1:], kwargs)
    if any(isinstance(value, torch.Tensor) for value in rest):
        return moved(rest[0], tensor.device, tensor.dtype)
    return moved(func(torch.empty(0, dtype=tensor.dtype), *rest), tensor.device)
