"""The one gate through which every call that concerns virtual GPUs passes.

PyTorch calls `__torch_function__` before it runs one of its functions, and `__torch_dispatch__`
before it runs an operator: of the modes that are on in the calling thread, and of the tensors'
class. All four meet in `Gate`. For a function, a device that the caller names becomes the one the
core can take, and then PyTorch's own code runs in which `tensor.device` is that one, too; how an
operator runs is in dispatch.py.

Most functions need only their `device=` argument replaced. The few that need more have a stand-in,
registered with `takes_over`: see functions.py.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from multigpu.devices import dispatch
from multigpu.devices.dispatch import HALF, Args, Kwargs
from multigpu.devices.gpu import (
    CPU,
    core_device,
    drawing,
    gpu_of,
    note_copy,
    running,
    virtual_machine,
)
from multigpu.devices.tensor import VirtualTensor, is_made_of_others, made_of_others

StandIn = Callable[[Any, Args, Kwargs], Any]

_core: Any = torch._C
_FunctionMode: Any = TorchFunctionMode
_stand_ins: dict[Any, StandIn] = {}
_OPERATOR = type(torch.ops.aten.add.Tensor)
_PYTHON = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)


def takes_over(*functions: Any) -> Callable[[StandIn], StandIn]:
    """Marks a function as the stand-in for torch's `functions`.

    It is called with the function, its arguments and its keyword arguments, and with interception
    off: what it calls in turn is not intercepted, unless it goes through `call` or `run_in_core`.
    """

    def mark(stand_in: StandIn) -> StandIn:
        _stand_ins.update(dict.fromkeys(functions, stand_in))
        return stand_in

    return mark


class Gate(TorchFunctionMode, TorchDispatchMode):  # type: ignore[no-untyped-call]
    """As a mode of a thread it also intercepts calls without any virtual tensor.

    On the stack of function modes it is as long as virtual GPUs are on; on that of dispatch modes
    only while a call runs that concerns one, because each operator pays for it.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch.compile is refused here, and importing what would tell it to stay out takes seconds.
        return False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The result of torch function `func`, called with this mode on."""
        running.intercepts = False  # PyTorch has taken the mode off its stack for the call
        try:
            if not kwargs and not types and func not in _stand_ins and not has_parts(*args):
                return func(*args)  # nearly all that a DataLoader does: it names no GPU
            return self.handle(func, types, args, kwargs)
        finally:
            running.intercepts = True

    def handle(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """The result of torch function `func`, which may name virtual GPUs."""
        if virtual_machine() is None:  # in a thread that has outlived the machine
            # A setter's `types` leave out what is set.
            concerns = VirtualTensor in types or any(isinstance(x, VirtualTensor) for x in args)
            if not concerns:
                return func(*args, **(kwargs or {}))
        stand_in = _stand_ins.get(func)
        if stand_in is not None:
            return stand_in(func, args, kwargs or {})
        return call(func, types, args, kwargs or {})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if made_of_others(types):
            return self.handed_on(func, args, kwargs or {})
        return dispatch.run(func, args, kwargs or {})

    def handed_on(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """The result of an operator that a DTensor's own code runs, which calls a GPU cuda:i.

        That code's calls come here again, with the parts in place of the whole.
        """
        given = zip(func._schema.arguments, args, strict=False)
        if running.hands_on or any(  # redispatch takes no number for a tensor
            str(argument.type) == "Tensor" and not isinstance(value, torch.Tensor)
            for argument, value in given
        ):
            running.hands_on = False
            return NotImplemented  # so PyTorch asks the DTensor, with this mode on
        running.hands_on = True
        _core._push_on_torch_dispatch_stack(self)
        try:
            with self.functions():  # which would intercept a plain call of func, too
                return func.redispatch(_PYTHON, *args, **kwargs)
        finally:
            running.hands_on = False
            _core._pop_torch_dispatch_stack(None)

    @contextlib.contextmanager
    def functions(self) -> Iterator[None]:
        """Intercept functions in the block, which runs user code that calls a GPU cuda:i."""
        in_core, running.in_core = running.in_core, False
        with _core._EnableTorchFunction():
            switched = self.switch_on()
            try:
                yield
            finally:
                if switched:
                    self.switch_off()
                running.in_core = in_core

    def switch_on(self) -> bool:
        """Intercept torch functions in this thread; false if that was on already."""
        if running.intercepts:
            return False
        _FunctionMode.__enter__(self)
        running.intercepts = True
        return True

    def switch_off(self) -> None:
        """Undo a `switch_on` of this thread that gave true.

        PyTorch takes the mode off that was entered last. Modes that were entered after this one and
        are still on (in a generator, say) are put back.
        """
        stack: list[Any] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        above = stack[stack.index(self) + 1 :] if self in stack else []
        for _ in (self, *above):
            _FunctionMode.__exit__(self, None, None, None)
        for mode in above:
            _FunctionMode.__enter__(mode)
        running.intercepts = False


gate = Gate()


VirtualTensor.gate = gate


def call(func: Any, types: Any, args: Args, kwargs: Kwargs) -> Any:
    """The result of a torch function without a stand-in."""
    if kwargs.get("pin_memory"):
        return pinned(call(func, types, args, {**kwargs, "pin_memory": False}))
    device = kwargs.get("device")
    if device is not None:
        is_carrier = isinstance(func, _OPERATOR) and gpu_of(device)  # of a DTensor's code
        core = device if is_carrier else core_device(device)
        made = run_in_core(func, args, {**kwargs, "device": core})
        if not core.index or not isinstance(made, torch.Tensor) or made.device.type != "cpu":
            return made
        # The core put Python numbers together without an operator.
        leaf = run_in_core(torch.Tensor.to, (made.detach(), core), {})
        # torch.func.vjp refuses requires_grad_, even with False.
        return leaf.requires_grad_() if made.requires_grad else leaf
    if VirtualTensor in types or has_parts(*args, *kwargs.values()):
        return run_in_core(func, args, kwargs)
    generator = kwargs.get("generator")
    # Any other default device comes here again, with `device=`.
    if generator is not None and torch.get_default_device().type == "cpu":
        drawing(generator, CPU)
    return func(*args, **kwargs)


def has_parts(*given: Any) -> bool:
    """Whether a function is given a DTensor, say, or a list of them.

    (PyTorch does not tell: to functions they are tensors as any other.)
    """
    for value in given:
        first = value[0] if isinstance(value, (list, tuple)) and value else value
        kind: type = type(first)
        if kind is not torch.Tensor and is_made_of_others(kind):
            return True
    return False


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, marked as being in pinned memory: host memory that a real GPU reads faster."""
    tensor.untyped_storage()._virtually_pinned = True  # type: ignore[attr-defined]
    return tensor


def run_in_core(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Call `func`, with carriers for all GPUs in its arguments, and its operators intercepted."""
    before, running.in_core = running.in_core, True
    try:
        with _core.DisableTorchFunctionSubclass():
            if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
                return with_operators(_under_autocast, func, args, kwargs)
            return with_operators(func, *args, **kwargs)
    except (RuntimeError, ValueError) as error:
        text = str(error)
        if "data is not allocated" not in text:
            if "cpu:" not in text:
                raise
            # cuda:1 in place of its carrier cpu:2
            named = re.sub(r"\bcpu:([1-9]\d*)", lambda match: f"cuda:{int(match[1]) - 1}", text)
            raise type(error)(named) from None
    finally:
        running.in_core = before

    def on_cpu(tensor: VirtualTensor) -> torch.Tensor:
        note_copy(tensor._gpu, None, tensor._data.nbytes)
        return tensor._data.cpu()

    # The core reads numbers (of `torch.tensor([x, y])`, say) without an operator. It may have
    # switched interception off for that, so the data are taken without one, too.
    args, kwargs = tree_map_only(VirtualTensor, on_cpu, (args, kwargs))
    return func(*args, **kwargs)


def with_operators(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`function(...)` with the operators inside it intercepted."""
    if running.operators:
        return function(*args, **kwargs)
    running.operators = True
    _core._push_on_torch_dispatch_stack(gate)
    try:
        return function(*args, **kwargs)
    finally:
        _core._pop_torch_dispatch_stack(None)
        running.operators = False


# Where user code runs although PyTorch has switched modes off: older threads of a pool do not have
# any, hooks on saved tensors are called from inside an operator. (New threads: see machine.py,
# backward passes: functions.py.)


def intercepted(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, run with interception on."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with gate.functions():
            return function(*args, **kwargs)

    return run


def saved_tensors_hooks(init: Callable[..., None]) -> Callable[..., None]:
    """`torch.autograd.graph.saved_tensors_hooks.__init__`."""

    def init_intercepted(hooks: Any, pack: Callable[..., Any], unpack: Callable[..., Any]) -> None:
        init(hooks, intercepted(pack), intercepted(unpack))

    return init_intercepted


def device_context(handle_function: Any) -> Any:
    """`DeviceContext.__torch_function__`: the mode of the default device, and of `with device:`.

    It is below the gate on its thread's stack, and so the device that it adds has not been seen.
    """

    def run(context: Any, func: Any, types: Any, args: Args = (), kwargs: Any = None) -> Any:
        if kwargs and kwargs.get("device") is not None:
            return func(*args, **kwargs)
        with gate.functions():
            return handle_function(context, func, types, args, kwargs)

    return run


# `torch.autocast("cuda")`. PyTorch keeps the switch and the dtype for "cuda" itself, but the core
# applies a device's autocast rules by the kind of tensor, and the shells look like CPU tensors to
# it. So while a call runs, the CPU's autocast is switched on with CUDA's dtype: matrix products and
# convolutions in half precision, losses in float32. Beyond the CPU's, CUDA's lists have these:
# docs.pytorch.org/docs/stable/amp.html, "CUDA Op-Specific Behavior", and ATen/autocast_mode.h


def _functions(names: str) -> set[Any]:
    owners = (torch, torch.Tensor, torch.nn.functional, torch.linalg)
    return {getattr(owner, name, None) for owner in owners for name in names.split()}


_FLOAT32 = _functions(
    "__pow__ __rpow__ acos asin cosh cosine_similarity cumprod cumsum dist erfinv exp expm1 "
    "gaussian_nll_loss group_norm gumbel_softmax interpolate layer_norm local_response_norm log "
    "log10 log1p log2 log_softmax logsumexp matrix_norm native_layer_norm norm normalize "
    "nuclear_norm pdist pow reciprocal renorm rms_norm rsqrt sinh softmax softmin softplus sum tan "
    "vector_norm"
)
_HALF = _functions("addmv addr gru gru_cell lstm lstm_cell mv rnn_relu rnn_tanh")
_WIDEST = _functions("bilinear cross dot index_put scatter_add tensordot vdot")


def _cast_to(func: Any, args: Any, kwargs: Any) -> torch.dtype | None:
    """The dtype in which CUDA's autocast runs `func`, unless the CPU's lists have it."""
    if func in _WIDEST:
        leaves = tree_leaves((args, kwargs))
        dtypes = {
            leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor) and gpu_of(leaf.device)
        }
        return torch.float32 if torch.float32 in dtypes else torch.get_autocast_dtype("cuda")
    if func in _HALF:
        return torch.get_autocast_dtype("cuda")
    return torch.float32 if func in _FLOAT32 else None


def _under_autocast(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """`func(*args, **kwargs)` under CUDA's autocast rules, and not the CPU's."""
    enabled = torch.is_autocast_enabled("cuda")
    if enabled and func is torch.nn.functional.binary_cross_entropy:
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
            "autocast.\nMany models use a sigmoid layer right before the binary cross entropy "
            "layer.\nIn this case, combine the two layers using "
            "torch.nn.functional.binary_cross_entropy_with_logits\nor torch.nn.BCEWithLogitsLoss. "
            " binary_cross_entropy_with_logits and BCEWithLogits are\nsafe to autocast."
        )
    # (As on CUDA, a call with `out` or a dtype of its own is not cast.)
    is_told = kwargs.get("out") is not None or kwargs.get("dtype") is not None
    dtype = _cast_to(func, args, kwargs) if enabled and not is_told else None
    if dtype is not None:
        casts = (torch.float32, *HALF)
        args, kwargs = tree_map_only(  # those inside a DTensor, or a tensor of torch.func, too
            torch.Tensor,
            lambda x: x.to(dtype) if x.dtype in casts and gpu_of(x.device) else x,
            (args, kwargs),
        )
    before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    torch.set_autocast_enabled("cpu", enabled and dtype is None)  # off below a cast, as on CUDA
    torch.set_autocast_dtype("cpu", torch.get_autocast_dtype("cuda"))
    try:
        return func(*args, **kwargs)
    finally:
        torch.set_autocast_enabled("cpu", before[0])
        torch.set_autocast_dtype("cpu", before[1])
