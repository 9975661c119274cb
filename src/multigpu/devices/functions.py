"""The functions of torch that need more than another `device=`: stand-ins for them.

Moving a tensor by name, making one from Python numbers, keeping a parameter the same object when
its data move (`p.data = ...`), pinned memory, backward passes, DistributedDataParallel. Stand-ins
without `takes_over` are put into torch by machine.py.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.utils._pytree import tree_leaves

from multigpu.devices import errors
from multigpu.devices.dispatch import Args, Kwargs
from multigpu.devices.gate import (
    call,
    gate,
    intercepted,
    pinned,
    run_in_core,
    takes_over,
    with_operators,
)
from multigpu.devices.gpu import CPU, core_device, gpu_of, named, running
from multigpu.devices.tensor import VirtualTensor

# Properties' getters and setters are functions of torch like any other. Type hints leave them out,
# and what DistributedDataParallel uses.
_Tensor: Any = torch.Tensor
_dist: Any = dist


@takes_over(torch.device)
def make_device(func: Any, args: Args, kwargs: Kwargs) -> torch.device:
    """`torch.device(1)` is cuda:1, as on a machine with GPUs."""
    return named(*args) if not kwargs and len(args) == 1 else torch.device(*args, **kwargs)


# Moving


def moved(tensor: torch.Tensor, device: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """`tensor.to(device, dtype)` for stand-ins, in which interception is off."""
    options = (core_device(device), dtype or tensor.dtype)
    return run_in_core(torch.Tensor.to, (tensor, *options), {})  # type: ignore[no-any-return]


@takes_over(torch.Tensor.to, torch.Tensor.cpu)
def to(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`tensor.to(...)` in all its forms, and `tensor.cpu()`."""
    if isinstance(args[0], UninitializedTensorMixin):
        lazy = args[0]
        with gate.functions():
            empty = torch.empty(0, dtype=lazy.dtype, device=lazy.device)
            like = func(empty, *args[1:], **kwargs)
            return type(lazy)(lazy.requires_grad, like.device, like.dtype)
    if len(args) > 1 and isinstance(args[1], (str, int, torch.device)):
        args = (args[0], core_device(args[1]), *args[2:])
    elif kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": core_device(kwargs["device"])}
    return run_in_core(func, args, kwargs)


def module_to(plain: Callable[..., Any]) -> Callable[..., Any]:
    """`module.to(...)`: the core would take a tensor's carrier, and a bare number, for a CPU."""

    @functools.wraps(plain)
    def to(module: Any, *args: Any, **kwargs: Any) -> Any:
        for name in ("device", "tensor"):  # as the first argument
            if kwargs.get(name) is not None:
                args = (kwargs.pop(name), *args)
        if args and isinstance(args[0], VirtualTensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        elif args and isinstance(args[0], int):
            args = (named(args[0]), *args[1:])
        return plain(module, *args, **kwargs)

    return to


@takes_over(torch.Tensor.cuda)
def cuda(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`tensor.cuda(device=None, non_blocking=False, memory_format=...)`."""
    tensor, *rest = args
    options = dict(zip(("device", "non_blocking"), rest, strict=False)) | kwargs
    if options.get("device") is None:
        options["device"] = "cuda"
    return to(torch.Tensor.to, (tensor,), options)


# Made from Python numbers: on the CPU, then copied to the GPU, as under CUDA. The core puts the
# numbers together without an operator, so there would be nothing to intercept.


@takes_over(torch.tensor, torch.as_tensor, torch.asarray)
def from_values(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`torch.tensor(values, dtype=..., device=..., requires_grad=...)`."""
    if kwargs.get("device") is None:  # PyTorch does not tell whether there is a virtual tensor
        return run_in_core(func, args, kwargs)
    return call(func, (), args, kwargs)


@takes_over(torch.Tensor.new_tensor)
def new_tensor(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`tensor.new_tensor(values)`: like `tensor` in device and dtype unless told otherwise."""
    tensor, *rest = args
    given = {name: value for name, value in kwargs.items() if value is not None}
    options = {"dtype": tensor.dtype, "device": tensor.device, **given}
    return from_values(torch.tensor, tuple(rest), options)


@takes_over(torch.Tensor.new)
def new(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`tensor.new(...)`, as torch.optim makes tensors of the same type and device."""
    tensor, *rest = args
    if not isinstance(tensor, VirtualTensor):
        return call(func, [type(tensor)], args, kwargs)
    if tensor.is_sparse and len(rest) > 1:  # indices, values, size
        return run_in_core(torch.sparse_coo_tensor, args[1:], kwargs)
    if rest and isinstance(rest[0], torch.Tensor):
        return moved(rest[0], tensor.device, tensor.dtype)
    return moved(func(torch.empty(0, dtype=tensor.dtype), *rest), tensor.device)


# The same object, with other contents


@takes_over(_Tensor.data.__set__)
def set_data(func: Any, args: Args, kwargs: Kwargs) -> None:
    """`p.data = new`. `module.to(device)` ends here: each parameter stays the same object."""
    tensor, new = args
    if tensor is new:
        return
    if isinstance(tensor, UninitializedTensorMixin):
        if isinstance(new, VirtualTensor | UninitializedTensorMixin):  # and not one of half()
            gpu = new._gpu if isinstance(new, VirtualTensor) else getattr(new, "_lazy_gpu", None)
            tensor.__dict__["_lazy_gpu"] = gpu
            new = torch.empty(0, dtype=new.dtype, device=CPU)
        func(tensor, new)
    elif type(tensor) is VirtualTensor and type(new) is VirtualTensor and new._gpu is tensor._gpu:
        run_in_core(func, args, kwargs)
        tensor._data = new._data
    elif isinstance(tensor, VirtualTensor) or isinstance(new, VirtualTensor):
        _become(tensor, new.detach())
    else:
        func(*args, **kwargs)


def _become(tensor: torch.Tensor, new: torch.Tensor) -> None:
    """Give the object `tensor` the contents of `new`, which is on another device.

    The core refuses to assign data of another kind, so the two objects swap what is inside them. A
    gradient moves to the new device, too, and the hooks stay.
    """
    grad, requires_grad = tensor.grad, tensor.requires_grad
    if isinstance(tensor, torch.nn.Parameter):
        new = torch.nn.Parameter(new, requires_grad)
    else:
        new.requires_grad_(requires_grad)
    attributes = VirtualTensor.__getstate__(tensor)  # type: ignore[arg-type]
    tensor.grad = None
    torch._C._swap_tensor_impl(tensor, new)
    tensor.__class__, new.__class__ = new.__class__, tensor.__class__
    tensor.__dict__, new.__dict__ = new.__dict__, tensor.__dict__
    tensor.__dict__.update(attributes)
    # The core's own lists went to `new`. Handles remove hooks from these dictionaries.
    hooks, after_grad = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    tensor._backward_hooks, tensor._post_accumulate_grad_hooks = hooks, after_grad
    if grad is not None:
        _become(grad, moved(grad, tensor.device, tensor.dtype))
        tensor.grad = grad


@takes_over(_Tensor.grad.__set__)
def set_grad(func: Any, args: Args, kwargs: Kwargs) -> None:
    """`p.grad = gradient`, which must be on the same device."""
    tensor, gradient = args
    if isinstance(gradient, torch.Tensor) and gradient.device != tensor.device:
        raise errors.gradient_elsewhere(gradient.device, tensor.device)
    with torch._C.DisableTorchFunctionSubclass():
        func(tensor, gradient)


# A parameter of a lazy module (nn.LazyLinear) has no shape before its first batch. Until then its
# empty data are on the CPU, and it remembers the GPU that it belongs to.


@takes_over(_Tensor.data.__get__)
def get_data(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`p.data`; of a lazy parameter, empty data on the GPU that it belongs to."""
    gpu = getattr(args[0], "_lazy_gpu", None)
    if gpu is None:
        return call(func, [type(args[0])], args, kwargs)
    return VirtualTensor(torch.empty(0, dtype=args[0].dtype, device=CPU), gpu)


def lazy_parameter(new: Any) -> Any:
    """`UninitializedParameter.__new__`."""

    def made(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(new).bind(*args, **kwargs)
        device, given.arguments["device"] = given.arguments.get("device"), CPU
        parameter = new(*given.args, **given.kwargs)
        parameter.data = torch.empty(0, device=device, dtype=parameter.dtype)
        return parameter

    return staticmethod(made)


def materialize(plain: Callable[..., None]) -> Callable[..., None]:
    """`UninitializedParameter.materialize`: the first batch has told the shape."""

    @functools.wraps(plain)
    def run(parameter: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        device = device or parameter.data.device
        parameter.__dict__["_lazy_gpu"] = None
        plain(parameter, shape, CPU, dtype)
        parameter.data = parameter.data.to(device)

    return run


# Questions to a tensor


@takes_over(
    _Tensor.data_ptr,
    _Tensor.untyped_storage,
    _Tensor.numpy,
    _Tensor.tolist,
    _Tensor.get_device,
    _Tensor.is_shared,
)
def own_method(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`torch.Tensor.name(x)` is what `x.name()` is, x being virtual or not."""
    is_virtual = type(args[0]) is VirtualTensor
    return (getattr(VirtualTensor, func.__name__) if is_virtual else func)(*args, **kwargs)


@takes_over(_Tensor.device.__get__, _Tensor.is_cuda.__get__, _Tensor.is_cpu.__get__)
def place(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Where a tensor is, also one that is built on virtual tensors: a DTensor has a carrier."""
    tensor, name = args[0], func.__self__.__name__
    gpu = None if running.in_core else gpu_of(_Tensor.device.__get__(tensor))
    gpu = gpu or getattr(tensor, "_lazy_gpu", None)
    if gpu is None:
        return func(tensor)
    return gpu.device if name == "device" else name == "is_cuda"


@takes_over(torch.Tensor.type)
def type_(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`tensor.type()` is "torch.cuda.FloatTensor" on a GPU."""
    if len(args) == 1 and not kwargs and isinstance(args[0], VirtualTensor):
        return errors.type_name(args[0])
    if any("torch.cuda." in str(wanted) for wanted in (*args[1:], *kwargs.values())):
        errors.no_old_types()
    return call(func, [type(args[0])], args, kwargs)


@takes_over(torch.Tensor.is_pinned)
def is_pinned(func: Any, args: Args, kwargs: Kwargs) -> bool:
    """`tensor.is_pinned()`: pinned memory is only marked as such (see gate.py)."""
    tensor = args[0]
    if isinstance(tensor, VirtualTensor) or tensor.layout is not torch.strided:
        return False
    return getattr(tensor.untyped_storage(), "_virtually_pinned", False)


@takes_over(torch.Tensor.pin_memory)
def pin_memory(func: Any, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """`tensor.pin_memory()`: a copy in pinned memory, or the tensor itself if it is there."""
    tensor: torch.Tensor = args[0]
    if isinstance(tensor, VirtualTensor):
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    return tensor if is_pinned(None, (tensor,), {}) else pinned(tensor.clone())


@takes_over(torch.nn.functional.ctc_loss, torch.ctc_loss)
def ctc_loss(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """CUDA takes the lengths from the CPU; for tensor subclasses the core does not."""
    log_probs, targets, *lengths = args[:4]
    if isinstance(log_probs, VirtualTensor):
        lengths = [moved(torch.as_tensor(each), log_probs.device) for each in lengths]
    return call(func, (type(log_probs),), (log_probs, targets, *lengths, *args[4:]), kwargs)


@takes_over(torch.nn.functional.triplet_margin_with_distance_loss, torch.lobpcg)
def with_callback(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The functions of torch that call one of the user's own, which sees GPUs as cuda:i."""
    args = tuple(intercepted(value) if callable(value) else value for value in args)
    kwargs = {k: intercepted(value) if callable(value) else value for k, value in kwargs.items()}
    return run_in_core(func, args, kwargs)


# Gradients from users must be on the right GPU. The core checks the device of every gradient that a
# node of the graph returns, but not for tensor subclasses; this repeats the check for the roots of
# a backward pass and for custom Functions.


def backward(run_backward: Callable[..., Any]) -> Callable[..., Any]:
    """In a backward pass the core itself calls operators, hooks and custom Functions."""

    @functools.wraps(run_backward)
    def run(roots: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
        with gate.functions():
            starts = []
            for position, (root, grad) in enumerate(zip(roots, grads, strict=True)):
                if isinstance(grad, torch.Tensor):
                    is_tensor = isinstance(root, torch.Tensor)  # else a GradientEdge
                    device = root.device if is_tensor else _device_of(root.node, root.output_nr)
                    _check("", position, grad, device)
                    if grad.device != device:  # a single number
                        grad = grad.to(device)
                starts.append(grad)
            return with_operators(run_backward, roots, tuple(starts), *args, **kwargs)

    return run


def custom_backward(apply: Any) -> Any:
    """`BackwardCFunction.apply`: calls a custom Function's own `backward`."""

    @functools.wraps(apply)
    def checked(node: Any, *grads: Any) -> Any:
        result = apply(node, *grads)
        returned = result if isinstance(result, tuple) else (result,)
        wanted = [grad for grad, need in zip(returned, node.needs_input_grad, strict=False) if need]
        # An input that needs no gradient has no node before it.
        edges = [edge for edge in enumerate(node.next_functions) if edge[1][0] is not None]
        for grad, (position, (before, slot)) in zip(wanted, edges, strict=False):
            if isinstance(grad, torch.Tensor):
                origin = f"Function {node.name()} returned an "
                _check(origin, position, grad, _device_of(before, slot))
        return result

    return checked


def _device_of(node: Any, slot: int) -> torch.device:
    """Where a node of the graph wants its gradient number `slot`."""
    gpu = gpu_of(node._input_metadata[slot].device)
    return CPU if gpu is None else gpu.device


def _check(origin: str, position: int, grad: torch.Tensor, expected: torch.device) -> None:
    if grad.device != expected and grad.ndim:  # the core moves single numbers by itself
        raise RuntimeError(
            f"{origin}invalid gradient at index {position} - expected device {expected} "
            f"but got {grad.device}"
        )


# DistributedDataParallel is PyTorch's own, its reducer in C++ included: that finds a parameter's
# carrier, as the core does everywhere. Where Python calls it, the operators that it runs are
# intercepted, so that its buckets are made on the virtual GPU.


class Reducer(_dist.Reducer):  # type: ignore[misc]
    """`dist.Reducer`: averages the gradients in buckets while backward runs."""


def _with_operators(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        return with_operators(method, *args, **kwargs)

    return run


for _name, _method in vars(_dist.Reducer).items():
    if callable(_method) and (_name == "__init__" or not _name.startswith("__")):
        setattr(Reducer, _name, _with_operators(_method))


Reducer._set_mixed_precision_param_dtype = errors.no_ddp_precision


def on_data(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function(group, tensors, ...)` of DistributedDataParallel's constructor, in C++.

    It compares or sends tensors and reads memory by its address, and so gets the data themselves.
    """

    @functools.wraps(function)
    def run(group: Any, tensors: Any, *args: Any) -> Any:
        if not all(isinstance(tensor, VirtualTensor) for tensor in tensors):
            return function(group, tensors, *args)
        in_core, running.in_core = running.in_core, True
        try:
            return function(group, [tensor._data for tensor in tensors], *args)
        finally:
            running.in_core = in_core

    return run


def refused(refuse: Callable[[], NoReturn]) -> Callable[[Any], Any]:
    """A wrapper for functions that do not take tensors or modules on virtual GPUs."""

    def wrapper(plain: Any) -> Any:
        @functools.wraps(plain)
        def checked(*args: Any, **kwargs: Any) -> Any:
            for given in tree_leaves((args, kwargs)):
                is_module = isinstance(given, torch.nn.Module)
                tensors = [*given.parameters(), *given.buffers()] if is_module else [given]
                if any(isinstance(tensor, VirtualTensor) for tensor in tensors):
                    refuse()
            return plain(*args, **kwargs)

        return checked

    return wrapper
