"""The one gate through which every call that concerns virtual GPUs passes.

PyTorch calls `__torch_function__` before it runs one of its Python functions, and
`__torch_dispatch__` before it runs an operator: of the modes that are on in the calling thread, and
of the tensors' class. All four meet in `Gate`. For a function, a device that the caller names
becomes the one the core can take; how an operator runs is in dispatch.py.

Most functions need only their `device=` argument replaced. The few that need more have a stand-in,
registered with `takes_over`: see functions.py.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import CellType, FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from multigpu.devices import dispatch
from multigpu.devices.dispatch import Args, Kwargs
from multigpu.devices.gpu import CPU, check_generator, core_device, virtual_machine
from multigpu.devices.tensor import VirtualTensor

StandIn = Callable[[Any, Args, Kwargs], Any]

_core: Any = torch._C
_function_modes: Any = torch.overrides._get_current_function_mode_stack
_Mode: Any = TorchFunctionMode
_stand_ins: dict[Any, StandIn] = {}


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
    """As a mode of a thread it brings calls in which no virtual tensor takes part, too.

    On the stack of function modes it is as long as virtual GPUs are on; on that of dispatch modes
    only while a call runs that concerns one, because each operator pays for it.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch.compile is refused here, and importing what would tell it to stay out takes seconds.
        return False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The result of torch function `func`, with virtual GPUs understood."""
        stand_in = _stand_ins.get(func)
        if stand_in is not None:
            return stand_in(func, args, kwargs or {})
        return call(func, types, args, kwargs or {})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The result of operator `func`."""
        return dispatch.run(func, args, kwargs or {})

    @contextlib.contextmanager
    def operators(self) -> Iterator[None]:
        """Bring this thread's operators here inside the block, also inside of another operator."""
        _core._push_on_torch_dispatch_stack(self)
        try:
            yield
        finally:
            _core._pop_torch_dispatch_stack(None)

    @contextlib.contextmanager
    def functions(self) -> Iterator[None]:
        """Bring functions here inside the block, also where PyTorch has switched modes off."""
        with _core._EnableTorchFunction():
            switched = self.switch_on()
            try:
                yield
            finally:
                if switched:
                    self.switch_off()

    def switch_on(self) -> bool:
        """Intercept torch functions in this thread; false if that was on already."""
        if any(mode is self for mode in _function_modes()):
            return False
        _Mode.__enter__(self)
        return True

    def switch_off(self) -> None:
        """Take this mode off this thread's stack, wherever it is."""
        stack = _function_modes()
        if self in stack:
            above = stack[stack.index(self) + 1 :]
            for _ in (self, *above):
                _Mode.__exit__(self, None, None, None)  # takes the topmost off
            for mode in above:
                _Mode.__enter__(mode)


gate = Gate()
VirtualTensor.gate = gate


class _Running(threading.local):
    """What runs in a thread."""

    operators = False  # a call whose operators come to the gate

    def __init__(self) -> None:
        self.bodies: set[FunctionType] = set()  # functions of torch


_running = _Running()


def call(func: Any, types: Any, args: Args, kwargs: Kwargs) -> Any:
    """The result of a torch function without a stand-in."""
    if virtual_machine() is None:
        return run_in_core(func, args, kwargs) if VirtualTensor in types else func(*args, **kwargs)
    if kwargs.get("pin_memory"):
        return pinned(call(func, types, args, {**kwargs, "pin_memory": False}))
    device = kwargs.get("device")
    if device is None:
        default = default_device()
        if default is not None and default.type == "cuda" and func in _device_constructors():
            device = default
    if device is not None:
        core = core_device(device)
        made = run_in_core(func, args, {**kwargs, "device": core})
        if (
            core.type != "cpu"
            or not core.index
            or not isinstance(made, torch.Tensor)
            or isinstance(made, VirtualTensor)
        ):
            return made
        # The core put Python numbers together without an operator.
        leaf = run_in_core(torch.Tensor.to, (made.detach(), core), {})
        return leaf.requires_grad_(made.requires_grad)
    if VirtualTensor in types:
        return run_in_core(func, args, kwargs)
    generator = kwargs.get("generator")
    if generator is not None:
        check_generator(generator, CPU)
    return func(*args, **kwargs)


def default_device() -> torch.device | None:
    """What torch.set_default_device has set in this thread."""
    return torch.utils._device.CURRENT_DEVICE


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, marked as being in pinned memory: host memory that a real GPU reads faster."""
    tensor.untyped_storage()._virtually_pinned = True  # type: ignore[attr-defined]
    return tensor


def run_in_core(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Call `func` with its operators intercepted and GPUs called by name in its errors."""
    if isinstance(func, FunctionType) and func not in _running.bodies and (body := _body_of(func)):
        # Some call themselves by another name (`super().unflatten(...)`): that call runs as it is.
        _running.bodies.add(func)
        try:
            with gate.functions():
                return body(*args, **kwargs)
        finally:
            _running.bodies.discard(func)
    try:
        with _core.DisableTorchFunctionSubclass():
            if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
                return with_operators(_under_autocast, (func, args, kwargs), {})
            return with_operators(func, args, kwargs)
    except RuntimeError as error:
        if "cpu:" not in str(error):
            raise
        # cuda:1 in place of its carrier cpu:2
        text = re.sub(r"\bcpu:([1-9]\d*)", lambda match: f"cuda:{int(match[1]) - 1}", str(error))
        raise type(error)(text) from None


def with_operators(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """`func(*args, **kwargs)` with the operators inside it intercepted."""
    if _running.operators:
        return func(*args, **kwargs)
    _running.operators = True
    _core._push_on_torch_dispatch_stack(gate)
    try:
        return func(*args, **kwargs)
    finally:
        _core._pop_torch_dispatch_stack(None)
        _running.operators = False


# Where Python code runs without interception although virtual GPUs are on: new threads start
# without PyTorch's modes, hooks on saved tensors are called from inside an operator.
# (`Tensor.backward` switches modes off, too: see functions.py.)


def intercepted(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, run with interception on."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with gate.functions():
            return function(*args, **kwargs)

    return run


def in_new_thread(_: threading.Thread) -> AbstractContextManager[None]:
    """Threads that are started while virtual GPUs are on intercept as long as they live."""
    gate.switch_on()
    return nullcontext()


def saved_tensors_hooks(push: Callable[..., None]) -> Callable[..., None]:
    def push_intercepted(pack: Callable[..., Any], unpack: Callable[..., Any]) -> None:
        push(intercepted(pack), intercepted(unpack))

    return push_intercepted


# The bodies of torch's Python functions. Each function of torch.nn.functional and the like first
# asks `has_torch_function(...)` whether someone overrides it, and if so hands the whole call over.
# Here the answer has to be: go on, but let me see the calls you make. So the function is copied
# with a `has_torch_function` that says no. (torch 2.13 has torch.overrides.redispatch_function for
# this, 2.11 has not.)

_QUESTION = "has_torch_function"
# Their parts hand over calls of their own in the name of the whole, and none names a device.
_WHOLE = (torch.unique, torch.unique_consecutive)


class _Names(dict[str, Any]):
    """A module's global names, looked up live, but with nobody overriding anything."""

    def __init__(self, module_names: dict[str, Any]) -> None:
        super().__init__(
            {name: lambda *_: False for name in module_names if name.startswith(_QUESTION)},
            __builtins__=module_names["__builtins__"],
        )
        self._module_names = module_names

    def __missing__(self, name: str) -> Any:
        return self._module_names[name]


@functools.cache
def _body_of(func: FunctionType) -> FunctionType | None:
    """`func` without its question; None if it does not ask and so can be called as it is."""
    if not func.__module__.startswith("torch") or func in _WHOLE:
        return None
    # torch.nn.init asks torch.overrides.has_torch_function...: no name of its own to take away.
    names = func.__code__.co_names
    asks = any(name.startswith(_QUESTION) and name in func.__globals__ for name in names)
    choices = func.__closure__ or ()
    if not asks:
        # max_pool2d and the like choose between two functions that ask, kept in their closure.
        choices = tuple(_choice(cell) for cell in choices)
        if choices == (func.__closure__ or ()):
            return None
    body = FunctionType(
        func.__code__, _Names(func.__globals__), func.__name__, func.__defaults__, choices
    )
    body.__kwdefaults__ = func.__kwdefaults__
    return body


def _choice(cell: CellType) -> CellType:
    function = cell.cell_contents
    body = _body_of(function) if isinstance(function, FunctionType) else None
    return cell if body is None else CellType(body)


# `torch.autocast("cuda")`. PyTorch keeps the switch and the dtype for "cuda" itself, but the core
# applies a device's autocast rules by the kind of tensor, and the shells look like CPU tensors to
# it. So while a call runs, the CPU's autocast is switched on with CUDA's dtype: matrix products and
# convolutions in half precision. What CUDA also takes back to float32, and the CPU does not:
# docs.pytorch.org/docs/stable/amp.html, "CUDA Ops that can autocast to float32"
# fmt: off
_FLOAT32_NAMES = (
    "__rpow__", "__pow__", "acos", "asin", "cosh", "cosine_embedding_loss", "cdist",
    "cosine_similarity", "cross_entropy_loss", "cumprod", "cumsum", "dist", "erfinv", "exp",
    "expm1", "group_norm", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss",
    "layer_norm", "log", "log10", "log_softmax", "log1p", "log2", "logsumexp",
    "margin_ranking_loss", "mse_loss", "multilabel_margin_loss", "multi_margin_loss",
    "native_layer_norm", "nll_loss", "nll_loss2d", "nll_loss_nd", "norm", "pdist",
    "poisson_nll_loss", "pow", "prod", "reciprocal", "renorm", "rsqrt", "sinh",
    "smooth_l1_loss", "soft_margin_loss", "softmax", "softmin", "softplus", "sum", "tan",
    "triplet_margin_loss", "binary_cross_entropy_with_logits",
)
# fmt: on
_FLOAT32 = {
    getattr(owner, name, None)
    for owner in (torch, torch.Tensor, _core._nn, torch.nn.functional)
    for name in _FLOAT32_NAMES
}


def _under_autocast(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """`func(*args, **kwargs)` under CUDA's autocast rules, and not the CPU's."""
    enabled = torch.is_autocast_enabled("cuda")
    if enabled and func is _core._nn.binary_cross_entropy:
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
            "autocast.\nMany models use a sigmoid layer right before the binary cross entropy "
            "layer.\nIn this case, combine the two layers using "
            "torch.nn.functional.binary_cross_entropy_with_logits\nor torch.nn.BCEWithLogitsLoss. "
            " binary_cross_entropy_with_logits and BCEWithLogits are\nsafe to autocast."
        )
    if enabled and func in _FLOAT32:
        args, kwargs = tree_map(_in_float32, (args, kwargs))
    before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    torch.set_autocast_enabled("cpu", enabled)
    torch.set_autocast_dtype("cpu", torch.get_autocast_dtype("cuda"))
    try:
        return func(*args, **kwargs)
    finally:
        torch.set_autocast_enabled("cpu", before[0])
        torch.set_autocast_dtype("cpu", before[1])


def _in_float32(value: Any) -> Any:
    is_half = isinstance(value, VirtualTensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if is_half else value
