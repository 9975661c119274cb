"""`.to`, `.cuda`, `.cpu`: moving a tensor to a device by name."""

from __future__ import annotations

from typing import Any

import torch

from multigpu.gpus import active, lazy
from multigpu.gpus.calls import Args, Kwargs, call, run_in_core, takes_over
from multigpu.gpus.devices import CPU, core_device, named
from multigpu.gpus.interception import functions
from multigpu.gpus.tensor import VirtualTensor


def moved(tensor: torch.Tensor, device: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """`tensor.to(device, dtype)` for stand-ins, in which interception is off."""
    core = core_device(device) if active.virtual_machine() is not None else CPU
    return run_in_core(torch.Tensor.to, (tensor, core, dtype or tensor.dtype), {})  # type: ignore[no-any-return]


@takes_over(torch.Tensor.to)
def to(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`tensor.to(...)` in all its forms."""
    if lazy.is_lazy(args[0]):
        with functions():
            return lazy.moved(args[0], args[1:], kwargs)
    if active.virtual_machine() is not None:
        if len(args) > 1 and isinstance(args[1], (str, int, torch.device)):
            args = (args[0], core_device(args[1]), *args[2:])
        elif kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": core_device(kwargs["device"])}
    return run_in_core(func, args, kwargs)


@takes_over(torch._C._nn._parse_to)
def parse_to(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """What `module.to(...)` makes of its arguments: device, dtype, non_blocking, format."""
    like = args[0] if args else kwargs.get("other", kwargs.get("tensor"))
    if isinstance(like, VirtualTensor):
        with torch._C.DisableTorchFunctionSubclass():
            return (like.device, *func(*args, **kwargs)[1:])
    if active.virtual_machine() is not None:
        if args and isinstance(args[0], int):
            args = (named(args[0]), *args[1:])
        if isinstance(kwargs.get("device"), int):
            kwargs = {**kwargs, "device": named(kwargs["device"])}
    return func(*args, **kwargs)


@takes_over(torch.Tensor.cuda)
def cuda(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`tensor.cuda(device=None, non_blocking=False, memory_format=...)`."""
    if active.virtual_machine() is None:
        return func(*args, **kwargs)
    tensor, *rest = args
    options = dict(zip(("device", "non_blocking"), rest, strict=False)) | kwargs
    device = options.pop("device", None)
    options["device"] = named("cuda" if device is None else device)
    return to(torch.Tensor.to, (tensor,), options)


@takes_over(torch.Tensor.cpu)
def cpu(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`tensor.cpu(memory_format=...)`."""
    if lazy.is_lazy(args[0]):
        return to(torch.Tensor.to, (args[0], CPU), {})
    return call(func, [type(args[0])], args, kwargs)
