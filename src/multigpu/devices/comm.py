"""The copies inside nn.DataParallel: stand-ins for the C++ functions behind torch.nn.parallel.comm.

They do what torch/csrc/cuda/comm.cpp does, with the same results and the same bytes on each link.
`torch.nn.parallel.comm` itself stays as it is, with all its checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch._utils

from multigpu.devices.gpu import gpu_at

Tensor = torch.Tensor
_packing: Any = torch._utils


def _device(index: int | None) -> torch.device:
    """The device that comm.cpp means by `index`: -1 is the CPU, None the current GPU."""
    return torch.device("cpu") if index == -1 else gpu_at(index).device


def broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    """A copy of `tensor` on every device; on its own device, the tensor itself."""
    return [tensor.to(_device(index), non_blocking=True) for index in devices]


def broadcast_out(tensor: Tensor, out: Sequence[Tensor]) -> list[Tensor]:
    """Copy `tensor` into every tensor of `out`."""
    return [target.copy_(tensor, non_blocking=True) for target in out]


def broadcast_coalesced(
    tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[Tensor]]:
    """All of `tensors` on every device; the first device must hold them and keeps its own.

    They travel packed into buffers of `buffer_size` bytes, so many small tensors make one copy.
    """
    source = _device(devices[0])
    if any(tensor.device != source for tensor in tensors):
        raise RuntimeError(f"all tensors must be on {source}")
    received: list[dict[int, Tensor]] = [{} for _ in devices[1:]]  # by the id of the original
    for chunk in _packing._take_tensors(tensors, buffer_size):
        sparse = chunk[0].is_sparse
        packed = None if sparse else _packing._flatten_dense_tensors(chunk)
        for index, arrived in zip(devices[1:], received, strict=True):
            if packed is None:
                copies = [tensor.to(_device(index)) for tensor in chunk]
            else:
                buffer = packed.to(_device(index), non_blocking=True)
                # .data: each copy counts its own versions, though all share one buffer
                parts = _packing._unflatten_dense_tensors(buffer, chunk)
                copies = [part.data for part in parts]
            arrived.update(zip(map(id, chunk), copies, strict=True))
    return [list(tensors), *([arrived[id(tensor)] for tensor in tensors] for arrived in received)]


def scatter(
    tensor: Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None,
    dim: int,
    streams: Any = None,
) -> list[Tensor]:
    """Consecutive chunks of `tensor` along `dim`, chunk i on devices[i]."""
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
    chunks = torch.split(tensor, [target.size(dim) for target in out], dim)
    for target, chunk in zip(out, chunks, strict=True):
        target.copy_(chunk, non_blocking=True)
    return list(out)


def gather(tensors: Sequence[Tensor], dim: int, destination: int | None) -> Tensor:
    """All tensors one after the other along `dim`, on one device."""
    size = list(tensors[0].shape)
    size[dim] = sum(tensor.size(dim) for tensor in tensors)
    out = torch.empty(size, dtype=tensors[0].dtype, device=_device(destination))
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


# What each replaces in torch._C.
STAND_INS = {
    "_broadcast": broadcast,
    "_broadcast_out": broadcast_out,
    "_broadcast_coalesced": broadcast_coalesced,
    "_scatter": scatter,
    "_scatter_out": scatter_out,
    "_gather": gather,
    "_gather_out": gather_out,
}
