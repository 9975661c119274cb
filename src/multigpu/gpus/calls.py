"""Calls of torch's Python functions: what a caller names "cuda:1" becomes what the core can take.

Most calls need only their `device=` argument replaced. The few that need more have a stand-in,
registered with `takes_over`: see moves.py, values.py, identity.py and lazy.py.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch.utils._device import _device_constructors

from multigpu.gpus import active, autocast, generators, interception
from multigpu.gpus.bodies import body_of
from multigpu.gpus.devices import CPU, core_device, named
from multigpu.gpus.tensor import VirtualTensor

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
StandIn = Callable[[Any, Args, Kwargs], Any]

_stand_ins: dict[Any, StandIn] = {}


class _Running(threading.local):
    """The functions of torch whose bodies are running in a thread."""

    def __init__(self) -> None:
        self.bodies: set[FunctionType] = set()


_thread = _Running()


def takes_over(*functions: Any) -> Callable[[StandIn], StandIn]:
    """Marks a function as the stand-in for torch's `functions`.

    It is called with the function, its arguments and its keyword arguments, and with interception
    off: what it calls in turn is not intercepted, unless it goes through `call` or `run_in_core`.
    """

    def mark(stand_in: StandIn) -> StandIn:
        for function in functions:
            _stand_ins[function] = stand_in
        return stand_in

    return mark


def intercept(func: Any, types: Any, args: Args, kwargs: Kwargs) -> Any:
    """The result of torch function `func`, with virtual GPUs understood."""
    stand_in = _stand_ins.get(func)
    if stand_in is not None:
        return stand_in(func, args, kwargs)
    return call(func, types, args, kwargs)


interception.function_mode.take = intercept


def call(func: Any, types: Any, args: Args, kwargs: Kwargs) -> Any:
    """`intercept` for functions without a stand-in."""
    if active.virtual_machine() is None:
        return run_in_core(func, args, kwargs) if VirtualTensor in types else func(*args, **kwargs)
    if kwargs.get("pin_memory"):
        return pinned(call(func, types, args, {**kwargs, "pin_memory": False}))
    device = _device_asked_for(func, kwargs)
    if device is not None:
        core = core_device(device)
        made = run_in_core(func, args, {**kwargs, "device": core})
        return _put_on_gpu(made, core) if core.type == "cpu" and core.index else made
    if VirtualTensor in types:
        return run_in_core(func, args, kwargs)
    generator = kwargs.get("generator")
    if generator is not None:
        generators.check(generator, CPU)
    return func(*args, **kwargs)


def _device_asked_for(func: Any, kwargs: Kwargs) -> Any:
    """The device a call names, or the default device if that is a GPU; else None."""
    device = kwargs.get("device")
    if device is None:
        default = torch.utils._device.CURRENT_DEVICE  # what torch.set_default_device has set
        if default is not None and default.type == "cuda" and func in _device_constructors():
            return default
    return device


def _put_on_gpu(made: Any, core: torch.device) -> Any:
    """A factory's result, also if the core put Python numbers together without an operator."""
    if isinstance(made, torch.Tensor) and not isinstance(made, VirtualTensor):
        leaf = run_in_core(torch.Tensor.to, (made.detach(), core), {})
        return leaf.requires_grad_(made.requires_grad)
    return made


def run_in_core(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Call `func` with its operators intercepted and GPUs called by name in its errors."""
    if isinstance(func, FunctionType) and func not in _thread.bodies and (body := body_of(func)):
        return _run_body(func, body, args, kwargs)
    try:
        with torch._C.DisableTorchFunctionSubclass():
            if autocast.is_on():
                return interception.with_operators(autocast.call, (func, args, kwargs), {})
            return interception.with_operators(func, args, kwargs)
    except RuntimeError as error:
        if "cpu:" not in str(error):
            raise
        raise type(error)(_name_gpus(str(error))) from None


def _run_body(func: FunctionType, body: FunctionType, args: Args, kwargs: Kwargs) -> Any:
    """Run one of torch's Python functions with the calls inside it intercepted.

    Some of them call themselves by another name (`super().unflatten(...)`); the inner call is then
    run as it is.
    """
    _thread.bodies.add(func)
    try:
        with interception.functions():
            return body(*args, **kwargs)
    finally:
        _thread.bodies.discard(func)


def _name_gpus(message: str) -> str:
    """An error message of the core with cuda:1 in place of its carrier cpu:2."""
    return re.sub(r"\bcpu:([1-9]\d*)", lambda match: f"cuda:{int(match[1]) - 1}", message)


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` with its storage marked as pinned memory (see pinning.py)."""
    tensor.untyped_storage()._virtually_pinned = True  # type: ignore[attr-defined]
    return tensor


@takes_over(torch.device)
def make_device(func: Any, args: Args, kwargs: Kwargs) -> torch.device:
    """`torch.device(1)` is cuda:1, as on a machine with GPUs."""
    if active.virtual_machine() is not None and not kwargs and len(args) == 1:
        return named(args[0])
    return torch.device(*args, **kwargs)
