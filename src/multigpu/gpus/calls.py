"""Calls of torch's Python functions: what a caller names "cuda:1" becomes what the core can take.

Most calls need only their `device=` argument replaced; the few that need more are in `_special`
(moves.py, storage.py and saving.py add theirs with `takes_over`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch.utils._device import _device_constructors

from multigpu.gpus import active, autocast, generators
from multigpu.gpus.bodies import body_of
from multigpu.gpus.devices import CPU, core_device, named
from multigpu.gpus.generators import VirtualGenerator
from multigpu.gpus.tensor import VirtualTensor

Function = Callable[..., Any]

_special: dict[Any, Callable[..., Any]] = {}


def takes_over(*functions: Any) -> Callable[[Function], Function]:
    """Marks a function as the stand-in for torch's `functions`; it gets their arguments."""

    def mark(stand_in: Function) -> Function:
        for function in functions:
            _special[function] = stand_in
        return stand_in

    return mark


def intercept(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of torch function `func`, with virtual GPUs understood."""
    stand_in = _special.get(func)
    if stand_in is not None:
        return stand_in(func, args, kwargs)
    return call(func, types, args, kwargs)


def call(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`intercept` for functions without a stand-in."""
    if active.virtual_machine() is not None:
        if kwargs.get("pin_memory"):
            return pinned(call(func, types, args, {**kwargs, "pin_memory": False}))
        kwargs, on_gpu = _with_core_device(func, kwargs)
        if not on_gpu and not _concerns(types):
            if isinstance(kwargs.get("generator"), VirtualGenerator):
                generators.check(kwargs["generator"], CPU)
            return func(*args, **kwargs)
        if on_gpu:
            return _on_gpu(run_in_core(func, args, kwargs), kwargs["device"])
    return run_in_core(func, args, kwargs)


def _on_gpu(made: Any, core: torch.device) -> Any:
    """A factory's result, on the GPU also if the factory puts Python numbers together itself."""
    if isinstance(made, torch.Tensor) and not isinstance(made, VirtualTensor):
        leaf = run_in_core(torch.Tensor.to, (made.detach(), core), {})
        return leaf.requires_grad_(made.requires_grad)
    return made


def run_in_core(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `func` with its operators intercepted and devices in error messages translated."""
    from multigpu.gpus.interception import functions, with_operators

    if isinstance(func, FunctionType) and (body := body_of(func)) is not None:
        with functions():
            return body(*args, **kwargs)
    try:
        with torch._C.DisableTorchFunctionSubclass():
            if autocast.is_on():
                return with_operators(autocast.call, (func, args, kwargs), {})
            return with_operators(func, args, kwargs)
    except RuntimeError as error:
        if "cpu:" not in str(error):
            raise
        raise type(error)(_name_gpus(str(error))) from None


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` with its storage marked as pinned memory (see pinning.py)."""
    tensor.untyped_storage()._virtually_pinned = True  # type: ignore[attr-defined]
    return tensor


def _concerns(types: Any) -> bool:
    return any(issubclass(cls, VirtualTensor) for cls in types)


def _with_core_device(func: Any, kwargs: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """`kwargs` with the core's device, and whether that is a GPU."""
    device = kwargs.get("device")
    if device is None:
        device = torch.utils._device.CURRENT_DEVICE  # set by torch.set_default_device
        if device is None or device.type != "cuda" or func not in _device_constructors():
            return kwargs, False
    core = core_device(device)
    return {**kwargs, "device": core}, bool(core.index) and core.type == "cpu"


def _name_gpus(message: str) -> str:
    """An error message of the core with cuda:1 in place of its carrier cpu:2."""
    return re.sub(r"\bcpu:([1-9]\d*)", lambda match: f"cuda:{int(match[1]) - 1}", message)


@takes_over(torch.device)
def make_device(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """`torch.device(1)` is cuda:1, as on a machine with GPUs."""
    if active.virtual_machine() is not None and not kwargs and len(args) == 1:
        return named(args[0])
    return torch.device(*args, **kwargs)


