"""Copies between devices: the operators `_to_copy` and `copy_`, and the traffic meter.

Bytes are those that cross the link on real hardware: a change of dtype happens before the copy,
except on the way to the CPU, where it happens after it (ATen/native/cuda/Copy.cu).
"""

from __future__ import annotations

from typing import Any

import torch

from multigpu.gpus import active
from multigpu.gpus.devices import gpu_of
from multigpu.gpus.gpu import Gpu
from multigpu.gpus.plans import Plan, special
from multigpu.gpus.tensor import VirtualTensor
from multigpu.gpus.traffic import Copy


def place_of(tensor: torch.Tensor) -> Gpu | None:
    """The GPU a tensor is on, None for the CPU."""
    return tensor._gpu if isinstance(tensor, VirtualTensor) else None


def data_of(tensor: torch.Tensor) -> torch.Tensor:
    """The plain tensor with `tensor`'s data."""
    return tensor._data if isinstance(tensor, VirtualTensor) else tensor


def note(source: Gpu | None, target: Gpu | None, size: int) -> None:
    """Put one copy of `size` bytes on the meter, unless it stays on one device."""
    if source is target:
        return
    machine = active.virtual_machine() or (target or source).machine  # type: ignore[union-attr]
    machine.traffic.add(Copy(_name(source), _name(target), size))


def _name(gpu: Gpu | None) -> str:
    return "cpu" if gpu is None else str(gpu.device)


def bytes_on_link(source: torch.Tensor, target: torch.Tensor) -> int:
    """Bytes that cross the link when `source` is copied into `target`'s shape and dtype."""
    if source.layout is not torch.strided:
        parts = (source._indices(), source._values())
        return sum(part.numel() * part.element_size() for part in parts)
    element = target if isinstance(target, VirtualTensor) else source
    return target.numel() * element.element_size()


@special("_to_copy")
def to_copy(plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`_to_copy`: a new tensor with another dtype, layout or device."""
    source = args[0]
    origin = place_of(source)
    device = kwargs.get("device")
    target = origin if device is None else gpu_of(device)
    kwargs = dict(kwargs)
    kwargs.pop("pin_memory", None)
    if origin is not None or target is not None:
        if device is not None:
            kwargs["device"] = device if target is None else target.backing
        elif origin is not None:
            kwargs["device"] = origin.backing
    if target is not None:
        dtype = kwargs.get("dtype") or source.dtype
        if source.layout is torch.strided:
            target.check(source.numel() * dtype.itemsize)
    result = func(data_of(source), **kwargs)
    if target is not None:
        result = VirtualTensor(result, target)
    if origin is not target:
        note(origin, target, bytes_on_link(source, result))
    return result


@special("copy_")
def copy_(plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`copy_`: fill a tensor from another, on any device."""
    target, source, *rest = args
    func(data_of(target), data_of(source), *rest, **kwargs)
    origin, destination = place_of(source), place_of(target)
    if origin is not destination:
        note(origin, destination, bytes_on_link(source, target))
    return target


@special("_local_scalar_dense")
def item(plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`.item()`: one number from the GPU to the CPU."""
    source = args[0]
    result = func(data_of(source))
    note(place_of(source), None, source.element_size())
    return result
