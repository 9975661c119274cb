"""The errors CUDA raises, in its own words: a mistake looks the same here as on a real GPU."""

from __future__ import annotations

import os

import torch

_KERNEL_ERRORS_ARE_LATE = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the "
    "stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


def invalid_device_ordinal() -> RuntimeError:
    """A GPU index that this machine does not have."""
    return torch.AcceleratorError(
        "CUDA error: invalid device ordinal\n"
        "GPU device may be out of range, do you have enough GPUs?\n" + _KERNEL_ERRORS_ARE_LATE
    )


def two_devices(first: object, second: object) -> RuntimeError:
    """An element-wise operator on tensors of two devices."""
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{first} and {second}!"
    )


def argument_elsewhere(
    argument: str, device: object, *, others: object, operator: str
) -> RuntimeError:
    """An operator with named arguments (matrix product, loss, ...) on tensors of two devices."""
    return RuntimeError(
        f"Expected all tensors to be on the same device, but got {argument} is on {device}, "
        f"different from other tensors on {others} (when checking argument in method {operator})"
    )


def no_numpy(device: object) -> TypeError:
    """NumPy asked for the data of a GPU tensor."""
    return TypeError(
        f"can't convert {device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
        "to host memory first."
    )


def forked() -> RuntimeError:
    """A process that was forked while GPUs were in use touches one."""
    return RuntimeError(
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you "
        "must use the 'spawn' start method"
    )


def _gib(size: int) -> str:
    """A size as CUDA's allocator writes it."""
    if size <= 1024:
        return f"{size} bytes"
    for unit, scale in (("KiB", 2**10), ("MiB", 2**20)):
        if size <= scale * 1024:
            return f"{size / scale:.2f} {unit}"
    return f"{size / 2**30:.2f} GiB"


def out_of_memory(index: int, *, wanted: int, allocated: int, limit: int) -> RuntimeError:
    """An allocation of `wanted` bytes on GPU `index` does not fit."""
    return torch.OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate {_gib(wanted)}. GPU {index} has a total capacity "
        f"of {_gib(limit)} of which {_gib(limit - allocated)} is free. Process {os.getpid()} has "
        f"{_gib(allocated)} memory in use. Of the allocated memory {_gib(allocated)} is allocated "
        "by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
    )
