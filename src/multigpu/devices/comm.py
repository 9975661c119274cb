"""The copies inside nn.DataParallel: stand-ins for the functions of torch.nn.parallel.comm.

They do what torch/nn/parallel/comm.py and torch/csrc/cuda/comm.cpp do: the same checks in the same
words, the same results, the same bytes on each link. Sums (`reduce_add`, `reduce_add_coalesced`)
are PyTorch's own, which are made of such copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from multigpu.devices.gpu import CPU, Gpu, gpu_at, named

Tensor = torch.Tensor


def _real(tensor: Tensor) -> Tensor:
    """A complex tensor as its real and imaginary parts: torch.nn.parallel puts them together."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _gpus(devices: Sequence[Any]) -> list[Gpu]:
    """The GPUs that are named by devices, strings or numbers."""
    for device in map(named, devices):
        if device.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {device}")
    return [gpu_at(named(device).index) for device in devices]


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RuntimeError(otherwise)


def _require_gpu(tensor: Tensor, kind: str, place: str) -> None:
    _require(
        tensor.is_cuda,
        f"Expected all {kind} tensors to be CUDA tensors, but {place} has device '{tensor.device}'",
    )


def broadcast(tensor: Tensor, devices: Any = None, *, out: Any = None) -> tuple[Tensor, ...]:
    """A copy of `tensor` on every device (on its own: the tensor), or in each of `out`."""
    tensor = _real(tensor)
    if (devices is None) == (out is None):
        raise RuntimeError(
            "Exactly one of 'devices' and 'out' must be specified, but got "
            f"devices={devices} and out={out}"
        )
    if out is None:
        return tuple(tensor.to(gpu.device, non_blocking=True) for gpu in _gpus(devices))
    for i, target in enumerate(out):
        _require_gpu(target, "output", f"output tensor at index {i}")
        _require(
            target.shape == tensor.shape,
            "Expected all output tensors to have same shape as the source tensor "
            f"{list(tensor.shape)}, but output tensor at index {i} has shape {list(target.shape)}",
        )
    return tuple(target.copy_(tensor, non_blocking=True) for target in out)


def broadcast_coalesced(
    tensors: Sequence[Tensor], devices: Sequence[Any], buffer_size: int = 10485760
) -> list[list[Tensor]]:
    """All of `tensors` on every device; the first device must hold them and keeps its own.

    They travel packed into buffers of `buffer_size` bytes, so many small tensors make one copy.
    """
    tensors = [_real(tensor) for tensor in tensors]
    first, *others = _gpus(devices)
    if any(tensor.device != first.device for tensor in tensors):
        raise RuntimeError(f"All tensors must be on devices[0]: {first.index}")
    received: list[dict[int, Tensor]] = [{} for _ in others]  # by the id of the original
    for chunk in _chunks(tensors, buffer_size):
        sizes = [tensor.numel() for tensor in chunk]
        flat = [tensor.reshape(-1) for tensor in chunk]
        packed = torch.cat(flat) if len(flat) > 1 else flat[0]
        for gpu, arrived in zip(others, received, strict=True):
            parts = torch.split(packed.to(gpu.device, non_blocking=True), sizes)
            for tensor, part in zip(chunk, parts, strict=True):
                # .data: each copy counts its own versions, though all share one buffer
                arrived[id(tensor)] = part.view(tensor.shape).data
    for gpu, arrived in zip(others, received, strict=True):
        arrived |= {id(tensor): tensor.to(gpu.device) for tensor in tensors if tensor.is_sparse}
    return [tensors, *([arrived[id(tensor)] for tensor in tensors] for arrived in received)]


def _chunks(tensors: Sequence[Tensor], size: int) -> Iterator[list[Tensor]]:
    """The dense `tensors` in chunks of one dtype and at most `size` bytes, or of one tensor."""
    chunks: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.is_sparse:
            continue
        chunk = chunks.setdefault(tensor.dtype, [])
        if chunk and sum(each.nbytes for each in chunk) + tensor.nbytes > size:
            yield chunks.pop(tensor.dtype)
            chunk = chunks.setdefault(tensor.dtype, [])
        chunk.append(tensor)
    yield from chunks.values()


def scatter(
    tensor: Tensor,
    devices: Any = None,
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Any = None,
    *,
    out: Any = None,
) -> tuple[Tensor, ...]:
    """Consecutive chunks of `tensor` along `dim`, chunk i on devices[i] or in out[i]."""
    tensor = _real(tensor)
    if out is not None:
        for name, value in (("devices", devices), ("chunk_sizes", chunk_sizes)):
            what = f"'{name}' must not be specified when 'out' is specified, but got {name}={value}"
            _require(value is None, what)
        return _scattered_into(out, tensor, dim % tensor.ndim)
    gpus = _gpus(devices)
    _require(bool(gpus), "Expected at least one device to scatter to")
    if chunk_sizes is None:
        chunks = tensor.chunk(len(gpus), dim)  # perhaps fewer than GPUs
    else:
        _require(
            len(chunk_sizes) == len(gpus),
            "Expected devices and chunk_sizes to be of same length, but got "
            f"len(devices) = {len(gpus)} and len(chunk_sizes) = {len(chunk_sizes)}",
        )
        chunks = torch.split(tensor, list(chunk_sizes), dim)
    pairs = zip(chunks, gpus, strict=False)
    return tuple(chunk.to(gpu.device, non_blocking=True) for chunk, gpu in pairs)


def _scattered_into(out: Any, tensor: Tensor, dim: int) -> tuple[Tensor, ...]:
    _require(bool(out), "Expected at least one output tensor to scatter to")
    source = list(tensor.shape)
    for i, target in enumerate(out):
        _require_gpu(target, "output", f"output tensor at index {i}")
        _require(
            [*target.shape[:dim], source[dim], *target.shape[dim + 1 :]] == source,
            f"Output tensor at index {i} has incorrect shape: {list(target.shape)}. Expected same "
            f"shape except for scatter dim {dim} as the source tensor: {source}",
        )
    sizes = [target.size(dim) for target in out]
    _require(
        sum(sizes) == source[dim],
        f"Total size for output tensors along scatter dim {dim} does not match the source tensor "
        f"size at dim {dim}. Expected {source[dim]}, but got total size {sum(sizes)}",
    )
    pairs = zip(out, torch.split(tensor, sizes, dim), strict=True)
    return tuple(target.copy_(chunk, non_blocking=True) for target, chunk in pairs)


def gather(
    tensors: Sequence[Tensor], dim: int = 0, destination: Any = None, *, out: Tensor | None = None
) -> Tensor:
    """All tensors one after the other along `dim`, on one device (the current GPU) or in `out`."""
    tensors = [_real(tensor) for tensor in tensors]
    _require(
        out is None or destination is None,
        "'destination' must not be specified when 'out' is specified, but got "
        f"destination={destination}",
    )
    _require(bool(tensors), "Expected at least one tensor to gather from")
    size = list(tensors[0].shape)
    for i, tensor in enumerate(tensors):
        _require_gpu(tensor, "input", f"tensor at index {i}")
        _require(
            tensor.ndim == len(size),
            "Expected all input tensors to have the same number of dimensions, but tensor at "
            f"index {i} has {tensor.ndim} dimensions, (expected {len(size)})",
        )
        size[dim] = tensor.size(dim)
        _require(
            size == list(tensor.shape),
            f"Input tensor at index {i} has invalid shape {list(tensor.shape)}, but expected "
            f"{size}",
        )
    lengths = [tensor.size(dim) for tensor in tensors]
    size[dim] = sum(lengths)
    if out is None:
        device = CPU if destination == -1 else "cuda" if destination is None else destination
        out = torch.empty(size, dtype=tensors[0].dtype, device=device)
    shape = list(out.shape)
    _require(shape == size, f"Expected out tensor to have shape {size}, but got {shape}")
    for chunk, tensor in zip(torch.split(out, lengths, dim), tensors, strict=True):
        chunk.copy_(tensor, non_blocking=True)
    return out


# What each replaces in torch.nn.parallel.comm, and where that was imported from there.
STAND_INS = {
    "broadcast": broadcast,
    "broadcast_coalesced": broadcast_coalesced,
    "gather": gather,
    "scatter": scatter,
}
