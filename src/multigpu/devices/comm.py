"""The copies inside nn.DataParallel: stand-ins for the functions of torch.nn.parallel.comm.

They do what torch/nn/parallel/comm.py and torch/csrc/cuda/comm.cpp do: the same results, the same
bytes on each link. Sums (`reduce_add`, `reduce_add_coalesced`) are PyTorch's own, which are made of
such copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.cuda.comm
import torch.nn.parallel.comm

from multigpu.devices.gpu import CPU, cuda_index, gpu_at

Tensor = torch.Tensor


def _real(tensor: Tensor) -> Tensor:
    """A complex tensor as its real and imaginary parts: torch.nn.parallel puts them together."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _gpus(devices: Sequence[Any]) -> list[torch.device]:
    """The GPUs that are named by devices, strings or numbers."""
    return [gpu_at(cuda_index(device)).device for device in devices]


def broadcast(tensor: Tensor, devices: Sequence[Any]) -> tuple[Tensor, ...]:
    """A copy of `tensor` on every device; on its own the tensor itself."""
    return tuple(_real(tensor).to(gpu) for gpu in _gpus(devices))


def broadcast_coalesced(
    tensors: Sequence[Tensor], devices: Sequence[Any], buffer_size: int = 10485760
) -> list[list[Tensor]]:
    """All of `tensors` on every device; the first device must hold them and keeps its own.

    They travel packed into buffers of `buffer_size` bytes, so many small tensors make one copy.
    """
    tensors = [_real(tensor) for tensor in tensors]
    first, *others = _gpus(devices)
    if any(tensor.device != first for tensor in tensors):
        raise RuntimeError(f"All tensors must be on devices[0]: {first.index}")
    received: list[dict[int, Tensor]] = [{} for _ in others]  # by the id of the original
    for chunk in chunks_of(tensors, buffer_size):
        sizes = [tensor.numel() for tensor in chunk]
        flat = [tensor.reshape(-1) for tensor in chunk]
        packed = torch.cat(flat) if len(flat) > 1 else flat[0]
        for gpu, arrived in zip(others, received, strict=True):
            parts = torch.split(packed.to(gpu), sizes)
            for tensor, part in zip(chunk, parts, strict=True):
                # .data: each copy counts its own versions, though all share one buffer
                arrived[id(tensor)] = part.view(tensor.shape).data
    for gpu, arrived in zip(others, received, strict=True):
        arrived |= {id(tensor): tensor.to(gpu) for tensor in tensors if tensor.is_sparse}
    return [tensors, *([arrived[id(tensor)] for tensor in tensors] for arrived in received)]


def chunks_of(tensors: Sequence[Tensor], size: int) -> Iterator[list[Tensor]]:
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
    devices: Sequence[Any],
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Any = None,
) -> tuple[Tensor, ...]:
    """Consecutive chunks of `tensor` along `dim`, chunk i on devices[i]."""
    tensor, gpus = _real(tensor), _gpus(devices)
    if chunk_sizes is None:
        chunks = tensor.chunk(len(gpus), dim)  # perhaps fewer than GPUs
    else:
        chunks = torch.split(tensor, list(chunk_sizes), dim)
    return tuple(chunk.to(gpu) for chunk, gpu in zip(chunks, gpus, strict=False))


def gather(tensors: Sequence[Tensor], dim: int = 0, destination: Any = None) -> Tensor:
    """All tensors one after the other along `dim`, on one device: by default the current GPU."""
    tensors = [_real(tensor) for tensor in tensors]
    for i, tensor in enumerate(tensors):
        if not tensor.is_cuda:
            raise RuntimeError(
                "Expected all input tensors to be CUDA tensors, but tensor at index "
                f"{i} has device '{tensor.device}'"
            )
        expected = [*tensors[0].shape]
        expected[dim] = tensor.size(dim)
        if list(tensor.shape) != expected:
            raise RuntimeError(
                f"Input tensor at index {i} has invalid shape {list(tensor.shape)}, but expected "
                f"{expected}"
            )
    lengths = [tensor.size(dim) for tensor in tensors]
    size = [*tensors[0].shape]
    size[dim] = sum(lengths)
    device = CPU if destination == -1 else "cuda" if destination is None else destination
    gathered = torch.empty(size, dtype=tensors[0].dtype, device=device)
    for chunk, tensor in zip(torch.split(gathered, lengths, dim), tensors, strict=True):
        chunk.copy_(tensor)
    return gathered


_STAND_INS = {
    "broadcast": broadcast,
    "broadcast_coalesced": broadcast_coalesced,
    "gather": gather,
    "scatter": scatter,
}
# What replaces what; torch.cuda.comm has imported some of them
REPLACEMENTS = [(torch.nn.parallel.comm, _STAND_INS), (torch.cuda.comm, _STAND_INS)]
