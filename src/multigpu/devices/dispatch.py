"""Runs PyTorch's operators (`torch.ops.aten...`) on the data inside virtual tensors.

Every operator that touches a virtual GPU ends here, below autograd: all tensors are checked to be
on one GPU, the operator runs on their data, the results are put on that GPU. Facts about an
operator are worked out once, in its OperatorPlan. The few operators with their own rules are at the
end: copies between devices, products of integers, filling, `set_`.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves, tree_map

from multigpu.devices import errors, sync_batch_norm
from multigpu.devices.gpu import CPU, Gpu, drawing, gpu_of, note_copy
from multigpu.devices.tensor import VirtualTensor

_core: Any = torch._C
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

# Arguments that CUDA's operators accept on the CPU, whatever the other tensors' device.
_CPU_ARGUMENTS = {
    "lengths": {"_pack_padded_sequence"},
    "indices": {"index", "index_put", "index_put_", "_index_put_impl_"},
    "batch_sizes": {
        "_pack_padded_sequence_backward", "_pad_packed_sequence", "gru", "lstm", "rnn_relu",
        "rnn_tanh",
    },
    "tensor_indices_or_sections": {"tensor_split"},
}  # fmt: skip
# Operators that do not go element by element, and so take no 0-dim CPU tensor for a number.
# fmt: off
_NO_NUMBERS = {
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "cat", "embedding", "gather", "index_add",
    "index_copy", "index_select", "nll_loss_forward", "scatter", "scatter_add", "scatter_reduce",
    "stack", "take",
}
# fmt: on
# The result that these operators of CUDA leave on the CPU, by position.
_CPU_RESULT = {"_pack_padded_sequence": 1, "_pad_packed_sequence": 1}
_INSTEAD: dict[str, Callable[..., Any]] = {
    # Autograd's zeros have no memory at all, which the core cannot look for in a virtual tensor.
    "_efficientzerotensor": torch.ops.aten.zeros.default,
    **sync_batch_norm.OPERATORS,
}
_RESHAPING = {"resize_", "resize_as_", "set_", "resize_as_sparse_", "sparse_resize_"}
HALF = (torch.float16, torch.bfloat16)
# What CPU kernels say of an index or a label that only CUDA's kernels would see.
_ASSERTED = re.compile(r"(?<!Dimension )out of (bounds|range)|valid range|between 0 and 1")
_NO_KERNEL = ("not implemented for 'Half'", "not implemented for 'BFloat16'", "primitive")

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Special = Callable[["OperatorPlan", Any, Args, Kwargs], Any]
_specials: dict[str, Special] = {}


def special(*names: str) -> Callable[[Special], Special]:
    """Marks a function as the way to run the operators `names` (all overloads).

    It is called with the operator's plan, the operator, its arguments and its keyword arguments.
    """

    def mark(function: Special) -> Special:
        _specials.update(dict.fromkeys(names, function))
        return function

    return mark


class OperatorPlan:
    """How to run the operator `func` (an OpOverload)."""

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.name: str = schema.name.split("::")[1]
        self.argument_names = tuple(argument.name for argument in schema.arguments)
        self.special = _specials.get(self.name)
        # What to run: the operator, or one that does the same on virtual GPUs
        operator = _with_generator(func, self.argument_names)
        self.operator = _INSTEAD.get(self.name, operator)
        self.generator = operator is not func or "generator" in self.argument_names
        self.elementwise = torch.Tag.pointwise in func.tags
        self.mutates = schema.is_mutable
        self.reshapes = (  # may change the shape or the storage of an argument
            self.name in _RESHAPING
            or torch.Tag.inplace_view in func.tags
            or any(argument.is_out for argument in schema.arguments)
        )
        # A view takes no number out of a tensor.
        self.view = not schema.is_mutable and any(each.alias_info for each in schema.returns)
        # Made of other operators. (PyTorch 2.11 has no answer for `prim::device`, which C++ asks
        # of a fake tensor.)
        self.composite = func.namespace != "prim" and func.has_kernel_for_dispatch_key(_COMPOSITE)
        # Takes tensors without a dimension, on the CPU, for numbers
        self.takes_numbers = self.name.removesuffix("_") not in _NO_NUMBERS
        self.cpu_result = _CPU_RESULT.get(self.name)
        # Only the GPU checks its indices or labels.
        self.asserts = any(
            argument.name in ("index", "indices", "target") and "Tensor" in str(argument.type)
            for argument in schema.arguments
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


_plans: dict[Any, OperatorPlan] = {}


class Filling:
    """Data that a collective fills until it is waited for; see ranks/traced_group.py.

    `tell` is called when an operator takes them too early.
    """

    def __init__(self, tensor: VirtualTensor, tell: Callable[[], None]) -> None:
        self.tell = tell
        self._first, self._end = addresses_of(tensor)
        self._storage: Any = StorageWeakRef(tensor._data.untyped_storage())  # type: ignore[no-untyped-call]
        in_flight[:] = [other for other in in_flight if not other._storage.expired()]
        in_flight.append(self)

    def over(self) -> None:
        """From now on an operator that takes the data is right."""
        if self in in_flight:
            in_flight.remove(self)

    def is_taken_by(self, tensor: VirtualTensor) -> bool:
        """Whether an operator on ``tensor`` takes some of the data."""
        first, end = addresses_of(tensor)
        return first < self._end and self._first < end and not self._storage.expired()


in_flight: list[Filling] = []


def addresses_of(tensor: VirtualTensor) -> tuple[int, int]:
    """Those of a tensor's first byte, and of the byte after its last one."""
    data, first = tensor._data, tensor._data.data_ptr()
    if not data.numel():
        return first, first
    last = sum((n - 1) * stride for n, stride in zip(data.shape, data.stride(), strict=True))
    return first, first + (last + 1) * data.element_size()


def note_uses(args: Args, kwargs: Kwargs) -> None:
    """Tell of the tensors among an operator's arguments that are still being filled."""
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, VirtualTensor) and leaf._data.layout is torch.strided:
            for filling in [each for each in in_flight if each.is_taken_by(leaf)]:
                filling.over()  # once is enough
                filling.tell()


def run(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The result of operator `func`, on the GPU of its arguments."""
    plan = _plans.get(func)
    if plan is None:
        plan = _plans[func] = OperatorPlan(func)
    if in_flight and not plan.view:
        note_uses(args, kwargs)
    with torch._C.DisableTorchFunction():
        if plan.special is not None:
            return plan.special(plan, func, args, kwargs)
        if plan.composite:  # in inference mode the core does not take it apart
            _core._push_on_torch_dispatch_stack(VirtualTensor.gate)
            try:
                with lazy_marks():
                    return func.decompose(*args, **kwargs)
            finally:
                _core._pop_torch_dispatch_stack(None)
        return run_plainly(plan, args, kwargs)


@contextlib.contextmanager
def lazy_marks() -> Iterator[None]:
    """Lets a composite operator that is run as a whole conjugate and negate lazily inside.

    The core has switched that off below autograd, where each operator's arguments are resolved.
    """
    conjugate, negative = torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative
    see = _core._SetExcludeDispatchKeyGuard
    with see(conjugate, False), see(negative, False):
        yield


def run_plainly(plan: OperatorPlan, args: Args, kwargs: Kwargs) -> Any:
    """`run` for operators without rules of their own."""
    tensors = _Tensors()
    data = [tensors.taken_out(argument) for argument in args]
    named_data = {name: tensors.taken_out(argument) for name, argument in kwargs.items()}
    shells = tensors.shells
    device = kwargs.get("device")
    gpu = gpu_of(device) if device is not None else shells[0]._gpu if shells else None
    if shells:
        first = shells[0]._gpu
        if first.machine.forked:
            raise errors.forked()
        if tensors.others or any(shell._gpu is not first for shell in shells):
            _check_devices(plan, args, kwargs, first)
    elif gpu is not None:  # a factory: stopped before it allocates
        size = kwargs.get("size", args[0] if args else None)
        if isinstance(size, (list, tuple)):
            dtype = kwargs.get("dtype") or torch.get_default_dtype()
            gpu.meter.check(math.prod(size) * dtype.itemsize)
    if gpu is not None and kwargs:  # name the device where the data really go
        if device is not None:
            named_data["device"] = gpu.backing
        if kwargs.get("pin_memory"):
            named_data["pin_memory"] = False
    if plan.generator:
        generator = kwargs.get("generator") or (gpu and gpu.generator)
        place = CPU if gpu is None else gpu.device
        named_data["generator"] = generator and drawing(generator, place)
    result = _run_on_data(plan, data, named_data, gpu)
    if plan.reshapes:
        _refresh(shells)
    return _put_in(result, gpu, shells, plan.cpu_result)


class _Tensors:
    """The tensors among an operator's arguments: virtual ones, and how many others."""

    __slots__ = ("others", "shells")

    def __init__(self) -> None:
        self.shells: list[VirtualTensor] = []
        self.others = 0

    def taken_out(self, argument: Any) -> Any:
        """`argument` with the data in place of each virtual tensor."""
        if isinstance(argument, VirtualTensor):
            self.shells.append(argument)
            return argument._data
        if isinstance(argument, (list, tuple)):
            return type(argument)([self.taken_out(item) for item in argument])
        if isinstance(argument, torch.Tensor):
            self.others += 1
        return argument


def _check_devices(plan: OperatorPlan, args: Args, kwargs: Kwargs, gpu: Gpu) -> None:
    """Raise CUDA's error unless all tensors are on `gpu`.

    As under CUDA, most operators accept a 0-dim CPU tensor as a number, and some take one argument
    (lengths, indices) from the CPU.
    """
    tensors: list[tuple[str, torch.Tensor]] = []
    are_there = True
    given = [*zip(plan.argument_names, args, strict=False), *kwargs.items()]
    for position, (name, argument) in enumerate(given):
        is_result = (plan.mutates and position == 0) or name == "out"
        for tensor in argument if isinstance(argument, (list, tuple)) else [argument]:
            if isinstance(tensor, VirtualTensor):
                are_there &= tensor._gpu is gpu
            elif isinstance(tensor, torch.Tensor) and plan.name not in _CPU_ARGUMENTS.get(name, ()):
                are_there &= plan.takes_numbers and not is_result and tensor.ndim == 0
            else:
                continue
            tensors.append((name, tensor))
    if are_there:
        return
    # The error is about the first two tensors on different devices, in order of the arguments.
    dimensional = [pair for pair in tensors if pair[1].ndim or isinstance(pair[1], VirtualTensor)]
    if len({tensor.device for _, tensor in dimensional}) > 1:
        tensors = dimensional
    first = tensors[0][1]
    others = [pair for pair in tensors if pair[1].device != first.device]
    if not others:
        raise RuntimeError(
            "tensors of two virtual machines cannot be mixed: copy one with .cpu() first"
        )
    raise errors.different_devices(plan.name, first, *others[0], elementwise=plan.elementwise)


def _run_on_data(plan: OperatorPlan, data: list[Any], named_data: Kwargs, gpu: Gpu | None) -> Any:
    """Run the operator on plain tensors.

    Where the CPU has no kernel for half precision: in float32, rounded at the end. (For matrix
    decompositions CUDA has none either.)
    """
    try:
        return plan.operator(*data, **named_data)
    except (IndexError, RuntimeError) as error:
        if gpu is not None and plan.asserts and _ASSERTED.search(str(error)):
            raise errors.device_side_assert(plan.name, str(error)) from None
        if plan.name.lstrip("_").startswith("linalg_") and '_cpu"' in str(error):
            text = str(error).replace("linalg_svd_cpu", "svd_cuda_gesvdj")
            raise type(error)(text.replace('_cpu"', '_cuda"')) from None
        halves = {
            leaf.dtype
            for leaf in tree_leaves((data, named_data))
            if isinstance(leaf, torch.Tensor) and leaf.dtype in HALF
        }
        if plan.mutates or not halves or not any(text in str(error) for text in _NO_KERNEL):
            raise
    dtype = halves.pop()

    def wider(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype in HALF:
            return value.float()
        return torch.float32 if value in HALF else value

    def narrower(value: Any) -> Any:
        is_wide = isinstance(value, torch.Tensor) and value.dtype is torch.float32
        return value.to(dtype) if is_wide else value

    data, named_data = tree_map(wider, (data, named_data))
    return tree_map(narrower, plan.operator(*data, **named_data))


def _put_in(
    result: Any, gpu: Gpu | None, shells: list[VirtualTensor], cpu_result: int | None = None
) -> Any:
    """`result` with every tensor on `gpu`; data of an argument keep the shell that they had."""
    if isinstance(result, torch.Tensor):
        for shell in shells:
            if shell._data is result:
                return shell
        return result if gpu is None else VirtualTensor(result, gpu)
    if isinstance(result, (list, tuple)):
        return type(result)(
            [
                item if position == cpu_result else _put_in(item, gpu, shells)
                for position, item in enumerate(result)
            ]
        )
    return result


def _refresh(shells: list[VirtualTensor]) -> None:
    """Bring shells up to date whose data have changed shape, stride or storage."""
    for shell in shells:
        data = shell._data
        shell._gpu.hold(data)
        if data.layout is torch.strided and (
            shell.shape != data.shape
            or shell.stride() != data.stride()
            or shell.storage_offset() != data.storage_offset()
        ):
            shell.put_back(data)


# Operators with rules of their own. Bytes of a copy are those that cross the link on real hardware:
# a change of dtype happens before the copy, except on the way to the CPU, where it happens after it
# (ATen/native/cuda/Copy.cu).


def _gpu(tensor: torch.Tensor) -> Gpu | None:
    """The GPU a tensor is on, None for the CPU."""
    return tensor._gpu if isinstance(tensor, VirtualTensor) else None


def data_of(tensor: torch.Tensor) -> torch.Tensor:
    """The plain tensor with `tensor`'s data."""
    return tensor._data if isinstance(tensor, VirtualTensor) else tensor


def _bytes_on_link(source: torch.Tensor, target: torch.Tensor) -> int:
    """Bytes that cross the link when `source` is copied into `target`'s shape and dtype."""
    if source.layout is not torch.strided:
        return source._indices().nbytes + source._values().nbytes
    element = target if isinstance(target, VirtualTensor) else source
    return target.numel() * element.element_size()


@special("_to_copy")
def to_copy(plan: OperatorPlan, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`_to_copy`: a new tensor with another dtype, layout or device."""
    source = args[0]
    device = kwargs.get("device")
    origin = _gpu(source)
    target = origin if device is None else gpu_of(device)
    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    if target is not None:
        kwargs["device"] = target.backing
        dtype = kwargs.get("dtype") or source.dtype
        if source.layout is torch.strided:
            target.meter.check(source.numel() * dtype.itemsize)
    result = func(data_of(source), **kwargs)
    if target is not None:
        result = VirtualTensor(result, target)
    if origin is not target:
        note_copy(origin, target, _bytes_on_link(source, result))
    return result


@special("copy_")
def copy_(plan: OperatorPlan, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`copy_`: fill a tensor from another, on any device."""
    target, source, *rest = args
    func(data_of(target), data_of(source), *rest, **kwargs)
    if _gpu(source) is not _gpu(target):
        note_copy(_gpu(source), _gpu(target), _bytes_on_link(source, target))
    return target


@special(*errors.INTEGERS_LACK)
def product(plan: OperatorPlan, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Products of matrices and convolutions: CUDA has none of integers."""
    tensor = args[0]
    if not tensor.is_floating_point() and not tensor.is_complex() and _gpu(tensor) is not None:
        raise errors.no_integers(plan.name, tensor.dtype)
    return run_plainly(plan, args, kwargs)


@special("_pack_padded_sequence")
def pack_padded_sequence(plan: OperatorPlan, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Its lengths must be on the CPU."""
    if _gpu(args[1]) is not None:
        raise errors.lengths_on_gpu(args[1])
    return run_plainly(plan, args, kwargs)


@special("linalg_pinv")
def pseudoinverse(plan: OperatorPlan, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """It conjugates tensors inside."""
    with lazy_marks():
        return run_plainly(plan, args, kwargs)


@special("_local_scalar_dense")
def item(plan: OperatorPlan, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`.item()`: one number from the GPU to the CPU."""
    note_copy(_gpu(args[0]), None, args[0].element_size())
    return func(data_of(args[0]))


@special("fill", "fill_", "index_put", "index_put_", "_index_put_impl_")
def fill(plan: OperatorPlan, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`tensor.fill_(number)` and `tensor[indices] = number`.

    A 0-dim tensor's number is fetched from wherever it is, as under CUDA.
    """
    position = next(i for i, name in enumerate(plan.argument_names) if name.startswith("value"))
    if len(args) > position:
        number, gpu = args[position], _gpu(args[0])
        if isinstance(number, VirtualTensor) and not number.ndim and number._gpu is not gpu:
            device = CPU if gpu is None else gpu.carrier
            moved = to_copy(plan, torch.ops.aten._to_copy.default, (number,), {"device": device})
            args = (*args[:position], moved, *args[position + 1 :])
    return run_plainly(plan, args, kwargs)


@special("set_")
def set_(plan: OperatorPlan, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`tensor.set_(storage, offset, size, stride)`, which `torch.load` ends in."""
    tensor, *rest = args
    source = rest[0] if rest else None
    if isinstance(source, torch.UntypedStorage) and source.device != tensor.device:
        raise RuntimeError(
            f'Attempted to set the storage of a tensor on device "{tensor.device}" to a storage '
            f'on different device "{source.device}".  This is no longer allowed; the devices '
            "must match."
        )
    return run_plainly(plan, args, kwargs)
