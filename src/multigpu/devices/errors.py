"""What a mistake raises, in CUDA's own words, and what virtual GPUs refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

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
        "GPU device may be out of range, do you have enough GPUs?\n"
        "Search for `cudaErrorInvalidDevice' in "
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more "
        "information.\n" + _KERNEL_ERRORS_ARE_LATE
    )


def device_side_assert(operator: str, why: str) -> RuntimeError:
    """A kernel met a number that it cannot use, such as a label that is not a class."""
    return torch.AcceleratorError(
        "CUDA error: device-side assert triggered\n"
        "Search for `cudaErrorAssert' in "
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more "
        f"information.\n{_KERNEL_ERRORS_ARE_LATE}\n"
        f"Details from the virtual GPU: {operator}: {why}\n"
        "On a real GPU every later CUDA call of the process fails, too: restart it, and run the "
        "same step on the CPU to see such a message."
    )


# Operators of which CUDA has no kernel for integers, with the name of the one that complains.
INTEGERS_LACK = {
    "addbmm": "addmm_cuda",
    "addmm": "addmm_cuda",
    "addmv": "addmv_impl_cuda",
    "baddbmm": "baddbmm_cuda",
    "bmm": "baddbmm_cuda",
    "convolution": "",
    "dot": "dot",
    "mm": "addmm_cuda",
    "mv": "addmv_impl_cuda",
    "vdot": "vdot",
}


def no_integers(operator: str, dtype: torch.dtype) -> RuntimeError:
    """A product of integers: CUDA's libraries have none."""
    kind = scalar_type(dtype)
    if operator == "convolution":
        return RuntimeError(f"getCudnnDataTypeFromScalarType() not supported for {kind}")
    return NotImplementedError(f"\"{INTEGERS_LACK[operator]}\" not implemented for '{kind}'")


def lengths_on_gpu(lengths: torch.Tensor) -> RuntimeError:
    """`pack_padded_sequence(x, lengths)`."""
    return RuntimeError(
        f"'lengths' argument should be a 1D CPU int64 tensor, but got {lengths.ndim}D "
        f"{lengths.device} {scalar_type(lengths.dtype)} tensor"
    )


def scalar_type(dtype: torch.dtype) -> str:
    """The core's name of a dtype: Long, Half."""
    return torch.empty(0, dtype=dtype).type().split(".")[-1].removesuffix("Tensor")


# Operators that CUDA runs through another one, which is the one it complains about.
_RUN_AS = {"stack": "cat", "embedding": "_index_select", "index_select": "_index_select"}
_ARGUMENTS_THERE = {"embedding": "index"}
# Operators that CUDA runs element by element although they are not marked as such.
_ELEMENTWISE = {
    "allclose",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "clamp",
    "huber_loss",
    "index_fill",
    "index_put",
    "_index_put_impl",
    "lerp",
    "mse_loss",
    "smooth_l1_loss",
    "where",
}


def different_devices(
    operator: str, first: torch.Tensor, argument: str, other: torch.Tensor, *, elementwise: bool
) -> RuntimeError:
    """`operator` got `first` and, as its argument `argument`, `other` on another device."""
    if operator == "convolution" and other.is_cuda != first.is_cuda and argument == "weight":
        types = f"Input type ({type_name(first)}) and weight type ({type_name(other)})"
        or_else = " or input should be a MKLDNN tensor and weight is a dense tensor"
        return RuntimeError(f"{types} should be the same{'' if first.is_cuda else or_else}")
    if operator.startswith(("index", "_index_put", "_unsafe_index")) and argument == "indices":
        return RuntimeError(
            "indices should be either on cpu or on the same device as the indexed tensor "
            f"({first.device})"
        )
    if operator == "mkldnn_rnn_layer":
        return RuntimeError(
            "Input and parameter tensors are not at the same device, found input tensor at "
            f"{first.device} and parameter tensor at {other.device}"
        )
    elementwise = elementwise or operator.startswith("_foreach_")
    if elementwise or operator.removesuffix("_") in _ELEMENTWISE:
        if not first.is_cuda:  # an element-by-element kernel runs where the GPU tensor is
            first, other = other, first
        return RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{first.device} and {other.device}!"
        )
    return RuntimeError(
        "Expected all tensors to be on the same device, but got "
        f"{_ARGUMENTS_THERE.get(operator, argument)} is on {other.device}, different from other "
        f"tensors on {first.device} (when checking argument in method "
        f"wrapper_CUDA_{_RUN_AS.get(operator, operator)})"
    )


def type_name(tensor: torch.Tensor) -> str:
    """The old name of a tensor's type: torch.FloatTensor, torch.cuda.FloatTensor."""
    with torch._C.DisableTorchFunction():  # and so of the shell, for the core a CPU tensor
        name = torch._C.TensorBase.type(tensor)
    return name.replace("torch.", "torch.cuda.") if tensor.is_cuda else name


def no_numpy(device: object) -> TypeError:
    """NumPy asked for the data of a GPU tensor."""
    return TypeError(
        f"can't convert {device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
        "to host memory first."
    )


def gradient_elsewhere(gradient: torch.device, tensor: torch.device) -> RuntimeError:
    """`tensor.grad = gradient` on two devices."""
    if gradient.type != tensor.type:
        return RuntimeError(
            f"attempting to assign a gradient with device type '{gradient.type}' to a tensor with "
            f"device type '{tensor.type}'. Please ensure that the gradient and the tensor are on "
            "the same device"
        )
    return RuntimeError(
        f"attempting to assign a gradient located on device with index '{gradient.index}' to a "
        f"tensor located on device with index '{tensor.index}'. Please ensure that the gradient "
        "and the tensor are on the same device"
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


def out_of_memory(
    index: int, *, wanted: int, allocated: int, limit: int, allowed: int
) -> RuntimeError:
    """An allocation of `wanted` bytes on GPU `index` does not fit."""
    capped = "" if allowed == limit else f"{_gib(allowed)} allowed; "
    return torch.OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate {_gib(wanted)}. GPU {index} has a total capacity "
        f"of {_gib(limit)} of which {_gib(limit - allocated)} is free. Including non-PyTorch "
        f"memory, this process has {_gib(allocated)} memory in use. {capped}Of the allocated "
        f"memory {_gib(allocated)} is allocated by PyTorch, and 0 bytes is reserved by PyTorch but "
        "unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
        "documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


# What virtual GPUs cannot do, and would fail at in a way that is hard to understand


def refusing(message: str, kind: type[Exception] = RuntimeError) -> Callable[..., NoReturn]:
    """Stands in for a function or a class that virtual GPUs do not have."""

    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise kind(message)

    return refuse


no_compile = refusing(
    "torch.compile does not work on virtual GPUs: it would generate code for a GPU that does not "
    "exist. Run the model without it; results are the same."
)
no_ddp_precision = refusing(
    "DistributedDataParallel(mixed_precision=...) does not work on virtual GPUs. Use "
    "torch.autocast instead."
)
no_dlpack = refusing(
    "the data of a virtual GPU cannot be exported: copy them to the CPU with .cpu()", BufferError
)
no_export = refusing(
    "torch.export does not work on virtual GPUs: it would trace a GPU that does not exist. "
    "Export the model and its example inputs on the CPU: model.cpu(), input.cpu()."
)
no_jit_save = refusing(
    "torch.jit.save does not work on virtual GPUs. Compile and save the module on the CPU: "
    "torch.jit.script(module.cpu())."
)
no_old_types = refusing(
    "virtual GPUs do not have the old types, such as torch.cuda.FloatTensor. Write the device and "
    "the dtype instead: x.to(device='cuda', dtype=torch.float32).",
    TypeError,
)
no_rpc = refusing(
    "remote calls (torch.distributed.rpc) carry no tensors of virtual GPUs: move a tensor to the "
    "CPU before it is sent or returned, with .cpu(), and to the GPU again afterwards."
)
no_sharing = refusing(
    "a tensor on a virtual GPU cannot be sent to another process: send tensor.cpu()."
)
