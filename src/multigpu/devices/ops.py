"""The operators with rules of their own: copies between devices, filling, dropout, `set_`.

Bytes of a copy are those that cross the link on real hardware: a change of dtype happens before
the copy, except on the way to the CPU, where it happens after it (ATen/native/cuda/Copy.cu).
"""

from __future__ import annotations

from typing import Any

import torch

from multigpu.devices.dispatch import Args, Kwargs, Plan, run_plainly, special
from multigpu.devices.gpu import CPU, Gpu, gpu_of, note_copy
from multigpu.devices.tensor import VirtualTensor


def _gpu(tensor: torch.Tensor) -> Gpu | None:
    """The GPU a tensor is on, None for the CPU."""
    return tensor._gpu if isinstance(tensor, VirtualTensor) else None


def _data(tensor: torch.Tensor) -> torch.Tensor:
    """The plain tensor with `tensor`'s data."""
    return tensor._data if isinstance(tensor, VirtualTensor) else tensor


def _bytes_on_link(source: torch.Tensor, target: torch.Tensor) -> int:
    """Bytes that cross the link when `source` is copied into `target`'s shape and dtype."""
    if source.layout is not torch.strided:
        return source._indices().nbytes + source._values().nbytes
    element = target if isinstance(target, VirtualTensor) else source
    return target.numel() * element.element_size()


@special("_to_copy")
def to_copy(plan: Plan, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`_to_copy`: a new tensor with another dtype, layout or device."""
    source = args[0]
    device = kwargs.get("device")
    origin = _gpu(source)
    target = origin if device is None else gpu_of(device)
    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    if target is not None:
        kwargs["device"] = target.backing
        dtype = kwargs.get("dtype") or source.dtype
        if source.layout is torch.strided:
            target.check(source.numel() * dtype.itemsize)
    result = func(_data(source), **kwargs)
    if target is not None:
        result = VirtualTensor(result, target)
    if origin is not target:
        note_copy(origin, target, _bytes_on_link(source, result))
    return result


@special("copy_")
def copy_(plan: Plan, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`copy_`: fill a tensor from another, on any device."""
    target, source, *rest = args
    func(_data(target), _data(source), *rest, **kwargs)
    if _gpu(source) is not _gpu(target):
        note_copy(_gpu(source), _gpu(target), _bytes_on_link(source, target))
    return target


@special("_local_scalar_dense")
def item(plan: Plan, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`.item()`: one number from the GPU to the CPU."""
    note_copy(_gpu(args[0]), None, args[0].element_size())
    return func(_data(args[0]))


@special("fill", "fill_", "index_put", "index_put_", "_index_put_impl_")
def fill(plan: Plan, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`tensor.fill_(number)` and `tensor[indices] = number`.

    A 0-dim tensor's number is fetched from wherever it is, as under CUDA.
    """
    position = next(i for i, name in enumerate(plan.argument_names) if name.startswith("value"))
    if len(args) > position:
        number, gpu = args[position], _gpu(args[0])
        if isinstance(number, VirtualTensor) and not number.ndim and number._gpu is not gpu:
            device = CPU if gpu is None else gpu.carrier
            moved = to_copy(plan, torch.ops.aten._to_copy.default, (number,), {"device": device})
            args = (*args[:position], moved, *args[position + 1 :])
    return run_plainly(plan, args, kwargs)


@special("native_dropout")
def native_dropout(plan: Plan, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Dropout: the result and the mask of what was kept.

    The one common operator that draws random numbers and cannot be told from where.
    """
    shell, probability, train = (*args, *kwargs.values())
    if not isinstance(shell, VirtualTensor):
        return func(*args, **kwargs)
    data, gpu = shell._data, shell._gpu
    if train is False:
        result, kept = data.clone(), torch.ones_like(data, dtype=torch.bool)
    else:
        kept = torch.empty_like(data, dtype=torch.bool)
        kept.bernoulli_(1 - probability, generator=gpu.generator)
        result = data * kept * (0.0 if probability == 1 else 1 / (1 - probability))
    return VirtualTensor(result, gpu), VirtualTensor(kept, gpu)


@special("set_")
def set_(plan: Plan, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`tensor.set_(storage, offset, size, stride)`, which `torch.load` ends in."""
    tensor, *rest = args
    source = rest[0] if rest else None
    if isinstance(source, torch.UntypedStorage) and source.device != tensor.device:
        raise RuntimeError(
            f'Attempted to set the storage of a tensor on device "{tensor.device}" to a storage '
            f'on different device "{source.device}".  This is no longer allowed; the devices '
            "must match."
        )
    return run_plainly(plan, args, kwargs)
