"""`.to`, `.cuda`, `torch.tensor` and what else puts a tensor on a device by name."""

from __future__ import annotations

from typing import Any

import torch

from multigpu.gpus import active, errors
from multigpu.gpus.calls import call, run_in_core, takes_over
from multigpu.gpus.devices import CPU, core_device
from multigpu.gpus.tensor import VirtualTensor

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@takes_over(torch.Tensor.to)
def to(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`tensor.to(...)` in all its forms."""
    if active.virtual_machine() is not None:
        if len(args) > 1 and isinstance(args[1], (str, int, torch.device)):
            args = (args[0], core_device(args[1]), *args[2:])
        elif kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": core_device(kwargs["device"])}
    return run_in_core(func, args, kwargs)


@takes_over(torch.Tensor.cuda)
def cuda(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`tensor.cuda(device=None, non_blocking=False, memory_format=...)`."""
    if active.virtual_machine() is None:
        return func(*args, **kwargs)
    tensor, *rest = args
    options = dict(zip(("device", "non_blocking"), rest)) | kwargs
    device = options.pop("device", None)
    options["device"] = core_device("cuda" if device is None else device)
    return run_in_core(torch.Tensor.to, (tensor,), options)


@takes_over(torch.tensor, torch.as_tensor, torch.asarray)
def from_values(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`torch.tensor(values, device=...)`: made on the CPU, then copied, as under CUDA."""
    if active.virtual_machine() is None:
        return func(*args, **kwargs)
    values = args[0] if args else next(iter(kwargs.values()))
    device = kwargs.get("device", torch.utils._device.CURRENT_DEVICE)
    core = None if device is None else core_device(device)
    if isinstance(values, VirtualTensor):
        return _from_tensor(func, values, kwargs, core)
    options = {**kwargs, "device": None if core is None or core.index else core}
    requires_grad = bool(core is not None and core.index and options.pop("requires_grad", False))
    made = call(func, (), args, {**options, "device": CPU})
    if core is None or not core.index:
        return made
    return run_in_core(torch.Tensor.to, (made, core), {}).requires_grad_(requires_grad)


def _from_tensor(func: Any, values: VirtualTensor, kwargs: Kwargs, core: torch.device | None) -> Any:
    """From a tensor that is on a GPU already: stays there unless told otherwise."""
    options = {"device": core or values._gpu.carrier}
    if kwargs.get("dtype") is not None:
        options["dtype"] = kwargs["dtype"]
    made = run_in_core(torch.Tensor.to, (values,), options)
    if func is torch.tensor:
        made = made.detach()
        made = made.clone() if made.data_ptr() == values.data_ptr() else made
        return made.requires_grad_(kwargs.get("requires_grad", False))
    return made.clone() if kwargs.get("copy") and made is values else made


@takes_over(torch.Tensor.new_tensor)
def new_tensor(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`tensor.new_tensor(values)`: on `tensor`'s device and with its dtype unless told otherwise."""
    tensor, *rest = args
    options = {"dtype": tensor.dtype, "device": tensor.device, **kwargs}
    return from_values(torch.tensor, tuple(rest), options)


@takes_over(torch.Tensor.numpy, torch.Tensor.__array__)
def numpy(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """A GPU's data cannot be seen as a NumPy array."""
    if isinstance(args[0], VirtualTensor):
        raise errors.no_numpy(args[0].device)
    return func(*args, **kwargs)


@takes_over(torch.Tensor.tolist)
def tolist(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Python numbers, copied to the CPU first, as under CUDA."""
    tensor = args[0]
    return func(tensor.cpu() if isinstance(tensor, VirtualTensor) else tensor)
