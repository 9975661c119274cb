"""Tensors that stay the same object: `p.data = ...`, `module.to(device)`, and deep copies."""

from __future__ import annotations

import copy
from typing import Any

import torch

from multigpu.gpus import errors, lazy
from multigpu.gpus.calls import Args, Kwargs, run_in_core, takes_over
from multigpu.gpus.moves import moved
from multigpu.gpus.tensor import OWN_ATTRIBUTES, VirtualTensor

# Properties, whose setters are functions of torch like any other.
_data: Any = torch.Tensor.data
_grad: Any = torch.Tensor.grad


@takes_over(_data.__set__)
def set_data(func: Any, args: Args, kwargs: Kwargs) -> None:
    """`p.data = new`. `module.to(device)` ends here: each parameter stays the same object."""
    tensor, new = args
    if tensor is new or lazy.set_data(tensor, new):
        return
    if type(tensor) is VirtualTensor and type(new) is VirtualTensor and new._gpu is tensor._gpu:
        run_in_core(func, args, kwargs)
        tensor._data, tensor._holdings = new._data, new._holdings
    elif isinstance(tensor, VirtualTensor) or isinstance(new, VirtualTensor):
        _become(tensor, new.detach())
    else:
        func(*args, **kwargs)


@takes_over(_grad.__set__)
def set_grad(func: Any, args: Args, kwargs: Kwargs) -> None:
    """`p.grad = gradient`, which must be on the same device."""
    tensor, gradient = args
    if isinstance(gradient, torch.Tensor) and gradient.device != tensor.device:
        raise errors.gradient_elsewhere(gradient.device, tensor.device)
    with torch._C.DisableTorchFunctionSubclass():
        func(tensor, gradient)


def _by_class(name: str) -> Any:
    """A stand-in for `torch.Tensor.name(x)`: what `x.name()` does, x being virtual or not."""

    def stand_in(func: Any, args: Args, kwargs: Kwargs) -> Any:
        method = getattr(VirtualTensor, name) if type(args[0]) is VirtualTensor else func
        return method(*args, **kwargs)

    return stand_in


for _name in ("data_ptr", "untyped_storage", "numpy", "tolist", "get_device", "is_shared"):
    takes_over(getattr(torch.Tensor, _name))(_by_class(_name))


def _become(tensor: torch.Tensor, new: torch.Tensor) -> None:
    """Give the object `tensor` the contents of `new`, which is on another device.

    The core refuses to assign data of another kind, so the two objects swap what is inside them.
    A gradient goes along to the new device.
    """
    grad, requires_grad = tensor.grad, tensor.requires_grad
    if isinstance(tensor, torch.nn.Parameter):
        new = torch.nn.Parameter(new, requires_grad)
    else:
        new.requires_grad_(requires_grad)
    attributes = _user_attributes(tensor)
    tensor.grad = None
    torch._C._swap_tensor_impl(tensor, new)
    tensor.__class__, new.__class__ = new.__class__, tensor.__class__
    tensor.__dict__, new.__dict__ = new.__dict__, tensor.__dict__
    tensor.__dict__.update(attributes)
    if grad is not None:
        _become(grad, moved(grad, tensor.device, tensor.dtype))
        tensor.grad = grad


def _user_attributes(tensor: torch.Tensor) -> dict[str, Any]:
    return {name: value for name, value in tensor.__dict__.items() if name not in OWN_ATTRIBUTES}


def deep_copy(tensor: VirtualTensor, memo: dict[int, Any]) -> torch.Tensor:
    """A copy on the same GPU; tensors that share a storage share one afterwards, too."""
    if id(tensor) in memo:
        return memo[id(tensor)]  # type: ignore[no-any-return]
    if not tensor.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            "protocol at the moment.  If you were attempting to deepcopy a module, this may be "
            "because of a torch.nn.utils.weight_norm usage, see "
            "https://github.com/pytorch/pytorch/pull/103001"
        )
    with torch._C.DisableTorchFunction():
        data = copy.deepcopy(tensor._data, memo)
    made: torch.Tensor = VirtualTensor(data, tensor._gpu)
    if isinstance(tensor, torch.nn.Parameter):
        made = torch.nn.Parameter(made, tensor.requires_grad)
    else:
        made.requires_grad_(tensor.requires_grad)
    memo[id(tensor)] = made
    if tensor.grad is not None:
        made.grad = copy.deepcopy(tensor.grad, memo)
    made.__dict__.update(copy.deepcopy(_user_attributes(tensor), memo))
    return made
