"""What is replaced in torch while virtual GPUs are on, and how it all comes back.

Beside torch.cuda and the C++ functions behind DataParallel these are the places where Python code
runs without interception although virtual GPUs are on: new threads start without PyTorch's modes,
`Tensor.backward` switches them off, hooks on saved tensors are called from inside an operator.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from concurrent import futures
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
import torch.optim
from torch.autograd import graph
from torch.autograd.function import BackwardCFunction
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

import multigpu.devices.ops  # noqa: F401  # the operators with rules of their own
from multigpu.devices import comm, functions, tensor, torch_cuda
from multigpu.devices.gate import gate, with_operators
from multigpu.devices.gpu import CPU, gpu_of
from multigpu.devices.threads import around_new_threads

_MISSING = object()
_undo = ExitStack()


def switch_on() -> None:
    """Replace what has to be replaced; an error on the way leaves nothing replaced."""
    try:
        for module, replacements in torch_cuda.REPLACEMENTS:
            for name, value in replacements.items():
                if hasattr(module, name):
                    _replace(module, name, value)
        for name, value in comm.STAND_INS.items():
            _replace(torch._C, name, value)
        _replace(torch.UntypedStorage, "to", tensor.storage_to)
        for cls in (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer):
            _replace(cls, "__new__", functions.lazy_new(cls.__new__))
        _replace(UninitializedTensorMixin, "materialize", functions.materialize)
        _undo.enter_context(around_new_threads(_thread))
        _wrap(futures.thread._WorkItem, "run", _intercepted)  # however old the pool's threads
        backward = _backward(graph._engine_run_backward)
        _replace(graph, "_engine_run_backward", backward)
        _replace(torch.autograd, "_engine_run_backward", backward)
        _wrap(torch._C._autograd, "_push_saved_tensors_default_hooks", _saved_tensors_hooks)
        _wrap(BackwardCFunction, "apply", _custom_backward)
        _replace(torch, "compile", _compile)
        _wrap(DistributedDataParallel, "__init__", _distributed)
        _wrap(torch.utils.dlpack, "to_dlpack", _export)
        # Optimizers update many tensors at once by default on CUDA, if they know the tensors' type.
        optimizer: Any = sys.modules["torch.optim.optimizer"]  # torch.optim hides the name
        known = optimizer._foreach_supported_types
        _replace(optimizer, "_foreach_supported_types", [*known, tensor.VirtualTensor])
    except BaseException:
        switch_off()
        raise


def switch_off() -> None:
    """Put everything back, last change first."""
    _undo.close()


def _replace(owner: Any, name: str, value: Any) -> None:
    """`owner.name = value`, until `switch_off`."""
    before = vars(owner).get(name, _MISSING)
    if before is _MISSING:
        _undo.callback(delattr, owner, name)
    else:
        _undo.callback(setattr, owner, name, before)
    setattr(owner, name, value)


def _wrap(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
    """`owner.name = wrapper(owner.name)`, until `switch_off`."""
    _replace(owner, name, wrapper(getattr(owner, name)))


# Interception where PyTorch has none


def _intercepted(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, run with interception on."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with gate.functions():
            return function(*args, **kwargs)

    return run


def _thread(_: threading.Thread) -> AbstractContextManager[None]:
    """Threads that are started while virtual GPUs are on intercept as long as they live."""
    gate.switch_on()
    return nullcontext()


def _backward(run_backward: Callable[..., Any]) -> Callable[..., Any]:
    """In a backward pass the core calls operators by itself, and hooks and custom Functions."""

    @functools.wraps(run_backward)
    def run(roots: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
        with gate.functions():
            pairs = enumerate(zip(roots, grads, strict=True))
            grads = tuple(_root_gradient(position, *pair) for position, pair in pairs)
            return with_operators(run_backward, (roots, grads, *args), kwargs)

    return run


def _saved_tensors_hooks(push: Callable[..., None]) -> Callable[..., None]:
    def push_intercepted(pack: Callable[..., Any], unpack: Callable[..., Any]) -> None:
        push(_intercepted(pack), _intercepted(unpack))

    return push_intercepted


# Gradients from users must be on the right GPU. The core checks the device of every gradient that a
# node of the graph returns, but not for tensor subclasses; this repeats the check for the roots of
# a backward pass and for custom Functions.


def _root_gradient(position: int, root: Any, grad: Any) -> Any:
    """`grad`, with which a backward pass starts at `root`; a single number is moved there."""
    if not isinstance(grad, torch.Tensor):
        return grad
    if isinstance(root, torch.Tensor):
        expected = root.device
    else:  # a GradientEdge
        expected = _device_of(root.node, root.output_nr)
    _check("", position, grad, expected)
    return grad if grad.device == expected else functions.moved(grad, expected)


def _custom_backward(apply: Any) -> Any:
    @functools.wraps(apply)
    def backward(node: Any, *grads: Any) -> Any:
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

    return backward


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


# What virtual GPUs cannot do, and would fail at in a way that is hard to understand


def _compile(model: Any = None, **options: Any) -> Any:
    raise RuntimeError(
        "torch.compile does not work on virtual GPUs: it would generate code for a GPU that is "
        "not there. Run the model without it; results are the same."
    )


def _distributed(init: Any) -> Any:
    @functools.wraps(init)
    def checked(wrapper: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        if any(isinstance(each, tensor.VirtualTensor) for each in module.parameters()):
            raise RuntimeError(
                "DistributedDataParallel needs one process per GPU, and virtual GPUs serve one "
                "process. Use nn.DataParallel here, or leave the model on the CPU."
            )
        init(wrapper, module, *args, **kwargs)

    return checked


def _export(to_dlpack: Any) -> Any:
    def export(exported: torch.Tensor) -> Any:
        if isinstance(exported, tensor.VirtualTensor):
            return exported.__dlpack__()  # which refuses
        return to_dlpack(exported)

    return export
