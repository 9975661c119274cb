"""`torch.tensor(values)` and its like: made on the CPU, then copied to the GPU, as under CUDA.

The core puts Python numbers together without an operator, so there would be nothing to intercept.
"""

from __future__ import annotations

from typing import Any

import torch

from multigpu.gpus import active
from multigpu.gpus.calls import Args, Kwargs, call, run_in_core, takes_over
from multigpu.gpus.devices import CPU, core_device
from multigpu.gpus.moves import moved
from multigpu.gpus.tensor import VirtualTensor


@takes_over(torch.tensor, torch.as_tensor, torch.asarray)
def from_values(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`torch.tensor(values, dtype=..., device=..., requires_grad=...)`."""
    if active.virtual_machine() is None:
        return func(*args, **kwargs)
    values, *rest = args or [kwargs.pop("data", None)]
    device = kwargs.pop("device", None)
    if device is None:
        device = torch.utils._device.CURRENT_DEVICE  # what torch.set_default_device has set
    core = None if device is None else core_device(device)
    if isinstance(values, VirtualTensor):
        return _from_tensor(func, values, kwargs, core)
    if core is None or core.type != "cpu" or not core.index:
        return _together(func, (values, *rest), {**kwargs, "device": core or CPU})
    requires_grad = kwargs.pop("requires_grad", False)
    made = _together(func, (values, *rest), {**kwargs, "device": CPU})
    return run_in_core(torch.Tensor.to, (made, core), {}).requires_grad_(requires_grad)


def _together(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Call `func`, whose values may contain tensors that stand for numbers."""
    try:
        return call(func, (), args, kwargs)
    except RuntimeError as error:
        if "not allocated" not in str(error):  # which a virtual tensor's own storage never is
            raise
        return call(func, (), (_on_cpu(args[0]), *args[1:]), kwargs)


def _on_cpu(values: Any) -> Any:
    if isinstance(values, (list, tuple)):
        return [_on_cpu(value) for value in values]
    return moved(values, CPU) if isinstance(values, VirtualTensor) else values


def _from_tensor(
    func: Any, values: VirtualTensor, kwargs: Kwargs, core: torch.device | None
) -> Any:
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
    """`tensor.new_tensor(values)`: like `tensor` in device and dtype unless told otherwise."""
    tensor, *rest = args
    options = {"dtype": tensor.dtype, "device": tensor.device, **kwargs}
    return from_values(torch.tensor, tuple(rest), options)
