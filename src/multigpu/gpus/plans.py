"""What has to be known about an operator before it runs, worked out once per operator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten

# Arguments that CUDA's operators accept on the CPU, whatever the other tensors' device.
_CPU_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "index": ("indices",),
    "index_put": ("indices",),
    "index_put_": ("indices",),
    "_index_put_impl_": ("indices",),
    "_unsafe_index": ("indices",),
    "_unsafe_index_put": ("indices",),
    "_pack_padded_sequence": ("lengths",),
    "_pack_padded_sequence_backward": ("batch_sizes",),
    "_pad_packed_sequence": ("batch_sizes",),
    "lstm": ("batch_sizes",),
    "gru": ("batch_sizes",),
    "rnn_tanh": ("batch_sizes",),
    "rnn_relu": ("batch_sizes",),
    "tensor_split": ("tensor_indices_or_sections",),
}
# Operators that do not go element by element, and so take no 0-dim CPU tensor for a number.
_NO_NUMBERS = {
    "addbmm",
    "addmm",
    "addmv",
    "addr",
    "baddbmm",
    "cat",
    "embedding",
    "gather",
    "index_add",
    "index_copy",
    "index_select",
    "nll_loss_forward",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "stack",
    "take",
}
# Results that CUDA's operators leave on the CPU, by position.
_CPU_RESULTS: dict[str, tuple[int, ...]] = {
    "_pack_padded_sequence": (1,),
    "_pad_packed_sequence": (1,),
}
# Autograd's zeros have no memory at all, which the core cannot look for inside a virtual tensor.
_INSTEAD = {"_efficientzerotensor": aten.zeros.default}
_RESHAPING = {"resize_", "resize_as_", "set_", "resize_as_sparse_", "sparse_resize_"}


@dataclass(slots=True)
class Plan:
    """How to run one operator."""

    name: str
    argument_names: tuple[str, ...]
    mutates: bool
    reshapes: bool  # it may change the shape or the storage of an argument
    elementwise: bool
    generator: bool  # it draws random numbers and takes a generator
    operator: Any  # what to run: the operator, or one that does the same on virtual GPUs
    takes_numbers: bool  # as tensors without a dimension, on the CPU
    cpu_arguments: tuple[str, ...]
    cpu_results: tuple[int, ...]
    composite: bool  # it is made of other operators
    special: Callable[[Plan, Any, tuple[Any, ...], dict[str, Any]], Any] | None = None

    def bytes_asked_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Bytes that a factory is going to allocate, as far as its size argument tells."""
        size = kwargs.get("size", args[0] if args else None)
        if not isinstance(size, (list, tuple, torch.Size)):
            return 0
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        return math.prod(size) * dtype.itemsize


_plans: dict[Any, Plan] = {}
specials: dict[str, Callable[[Plan, Any, tuple[Any, ...], dict[str, Any]], Any]] = {}


def plan_of(func: Any) -> Plan:
    """The plan of operator `func` (an OpOverload)."""
    plan = _plans.get(func)
    if plan is None:
        plan = _plans[func] = _make_plan(func)
    return plan


def _make_plan(func: Any) -> Plan:
    schema = func._schema
    name = schema.name.split("::")[1]
    names = tuple(argument.name for argument in schema.arguments)
    operator = _with_generator(func, names)
    return Plan(
        name=name,
        argument_names=names,
        mutates=schema.is_mutable,
        reshapes=(
            name in _RESHAPING
            or torch.Tag.inplace_view in func.tags
            or any(argument.is_out for argument in schema.arguments)
        ),
        elementwise=torch.Tag.pointwise in func.tags,
        generator=operator is not func or "generator" in names,
        operator=_INSTEAD.get(name, operator),
        takes_numbers=name.removesuffix("_") not in _NO_NUMBERS,
        cpu_arguments=_CPU_ARGUMENTS.get(name, ()),
        cpu_results=_CPU_RESULTS.get(name, ()),
        composite=torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), "CompositeImplicitAutograd"
        ),
        special=specials.get(name),
    )


def _with_generator(func: Any, names: tuple[str, ...]) -> Any:
    """The form of a random operator that takes a generator too; `func` itself if there is none."""
    if torch.Tag.nondeterministic_seeded not in func.tags or "generator" in names:
        return func
    packet = func.overloadpacket
    for overload in packet.overloads():
        other = getattr(packet, overload)
        others = tuple(argument.name for argument in other._schema.arguments)
        if tuple(name for name in others if name != "generator") == names != others:
            return other
    return func


def special(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Marks a function as the way to run the operators `names` (all overloads)."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            specials[name] = function
        return function

    return mark
