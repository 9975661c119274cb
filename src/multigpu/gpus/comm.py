"""The copies inside nn.DataParallel: stand-ins for the C++ functions behind torch.nn.parallel.comm.

They do what torch/csrc/cuda/comm.cpp does, with the same results and the same bytes on each link.
`torch.nn.parallel.comm` itself stays as it is, with all its checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch._utils

from multigpu.gpus.devices import gpu_at

Tensor = torch.Tensor
_packing: Any = torch._utils


def _device(index: int) -> torch.device:
    """The device that comm.cpp means by `index`: -1 is the CPU."""
    return torch.device("cpu") if index == -1 else gpu_at(index).device


def broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    """A copy of `tensor` on every device; on its own device, the tensor itself."""
    return [tensor.to(_device(index), non_blocking=True) for index in devices]


def broadcast_out(tensor: Tensor, out: Sequence[Tensor]) -> list[Tensor]:
    """Copy `tensor` into every tensor of `out`."""
    for position, target in enumerate(out):
        if target.device.type != "cuda":
            raise RuntimeError(
                f"Expected all output tensors to be CUDA tensors, but output tensor at index "
                f"{position} has device '{target.device}'"
            )
        if target.shape != tensor.shape:
            raise RuntimeError(
                f"Expected all output tensors to have same shape as the source "
                f"{list(tensor.shape)}, but output tensor at index {position} has shape "
                f"{list(target.shape)}"
            )
        target.copy_(tensor, non_blocking=True)
    return list(out)


def broadcast_coalesced(
    tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[Tensor]]:
    """All of `tensors` on every device; the first device must hold them and keeps its own.

    They travel packed into buffers of `buffer_size` bytes, so many small tensors make one copy.
    """
    source = _device(devices[0])
    if any(tensor.device != source for tensor in tensors):
        raise RuntimeError(f"all tensors must be on {source}")
    received: list[list[Tensor]] = [[] for _ in devices[1:]]
    order = []
    for chunk in _packing._take_tensors(tensors, buffer_size):
        order.extend(chunk)
        sparse = chunk[0].is_sparse
        packed = [] if sparse else [_packing._flatten_dense_tensors(chunk)]
        for index, arrived in zip(devices[1:], received, strict=True):
            if sparse:
                arrived.extend(tensor.to(_device(index)) for tensor in chunk)
            else:
                copy = packed[0].to(_device(index), non_blocking=True)
                # .data: each copy counts its own versions, though all share one buffer
                parts = _packing._unflatten_dense_tensors(copy, chunk)
                arrived.extend(part.data for part in parts)
    return [list(tensors), *(_in_order(arrived, order, tensors) for arrived in received)]


def _in_order(
    copies: list[Tensor], order: Sequence[Tensor], wanted: Sequence[Tensor]
) -> list[Tensor]:
    """`copies`, which are of the tensors `order`, in the order of the tensors `wanted`."""
    by_tensor = {id(tensor): copy for tensor, copy in zip(order, copies, strict=True)}
    return [by_tensor[id(tensor)] for tensor in wanted]


def scatter(
    tensor: Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None,
    dim: int,
    streams: Any = None,
) -> list[Tensor]:
    """Consecutive chunks of `tensor` along `dim`, chunk i on devices[i]."""
    dim = dim % tensor.ndim if tensor.ndim else dim
    if chunk_sizes is None:
        chunks = tensor.chunk(len(devices), dim)
    else:
        if sum(chunk_sizes) != tensor.size(dim):
            raise RuntimeError(
                f"given chunk sizes don't sum up to the tensor's size (sum(chunk_sizes) == "
                f"{sum(chunk_sizes)}, but expected {tensor.size(dim)})"
            )
        chunks = torch.split(tensor, list(chunk_sizes), dim)
    return [
        chunk.to(_device(index), non_blocking=True)
        for chunk, index in zip(chunks, devices, strict=False)  # perhaps fewer rows than devices
    ]


def scatter_out(
    tensor: Tensor, out: Sequence[Tensor], dim: int, streams: Any = None
) -> list[Tensor]:
    """Consecutive chunks of `tensor`, copied into the tensors of `out`."""
    if not out:
        raise RuntimeError("Expected at least one output tensor to scatter to")
    sizes = [target.size(dim) for target in out]
    if sum(sizes) != tensor.size(dim):
        raise RuntimeError(
            f"Total size for output tensors along scatter dim {dim} does not match the source "
            f"tensor size at dim {dim}. Expected {tensor.size(dim)}, but got total size "
            f"{sum(sizes)}"
        )
    for target, chunk in zip(out, torch.split(tensor, sizes, dim), strict=True):
        target.copy_(chunk, non_blocking=True)
    return list(out)


def gather(tensors: Sequence[Tensor], dim: int, destination: int | None) -> Tensor:
    """All tensors one after the other along `dim`, on one device."""
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    first = tensors[0]
    size = list(first.shape)
    size[dim] = sum(tensor.size(dim) for tensor in tensors)
    index = torch.cuda.current_device() if destination is None else destination
    out = torch.empty(size, dtype=first.dtype, device=_device(index))
    return gather_out(tensors, out, dim)


def gather_out(tensors: Sequence[Tensor], out: Tensor, dim: int) -> Tensor:
    """`gather` into `out`. Raises for tensors that are not on a GPU or do not fit."""
    expected = [length for position, length in enumerate(tensors[0].shape) if position != dim]
    for position, tensor in enumerate(tensors):
        if tensor.device.type != "cuda":
            raise RuntimeError(
                f"Expected all input tensors to be CUDA tensors, but tensor at index {position} "
                f"has device '{tensor.device}'"
            )
        sizes = [length for other, length in enumerate(tensor.shape) if other != dim]
        if tensor.ndim != tensors[0].ndim or sizes != expected:
            raise RuntimeError(
                f"Input tensor at index {position} has invalid shape {list(tensor.shape)}, but "
                f"expected {list(tensors[0].shape)}"
            )
    chunks = torch.split(out, [tensor.size(dim) for tensor in tensors], dim)
    for chunk, tensor in zip(chunks, tensors, strict=True):
        chunk.copy_(tensor, non_blocking=True)
    return out
