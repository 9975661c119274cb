"""Switching interception on, thread by thread.

PyTorch keeps its modes per thread. Two are needed: a function mode sees each call of torch's
Python functions first (`calls.intercept`), and a dispatch mode, on only while a call that
concerns a GPU runs, sees the operators inside it (`operators.run`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from multigpu.gpus import calls
from multigpu.gpus.operators import Dispatch


class Interception(TorchFunctionMode):
    """Hands every call of a torch function in this thread to `calls.intercept`."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return calls.intercept(func, types, args, kwargs or {})


_function_mode = Interception()
_dispatch_mode = Dispatch()


class _ThreadState(threading.local):
    dispatching = False


_thread = _ThreadState()


def _function_modes() -> list[Any]:
    depth = torch._C._len_torch_function_stack()
    return [torch._C._get_function_stack_at(level) for level in range(depth)]


def switch_on() -> bool:
    """Intercept torch functions in this thread; false if that was on already."""
    if any(mode is _function_mode for mode in _function_modes()):
        return False
    _push_mode(_function_mode)
    return True


def switch_off() -> None:
    """Take the function mode off this thread's stack, wherever it stands."""
    above: list[Any] = []
    while torch._C._len_torch_function_stack():
        mode = _pop_mode()
        if mode is _function_mode:
            break
        above.append(mode)
    for mode in reversed(above):
        _push_mode(mode)


@contextlib.contextmanager
def functions() -> Iterator[None]:
    """Intercept torch functions inside the block, also where PyTorch has switched that off."""
    with torch._C._EnableTorchFunction():  # type: ignore[attr-defined]
        switched = switch_on()
        try:
            yield
        finally:
            if switched:
                switch_off()


def with_operators(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """`func(*args, **kwargs)` with the operators inside it intercepted."""
    if _thread.dispatching:
        return func(*args, **kwargs)
    _thread.dispatching = True
    torch._C._push_on_torch_dispatch_stack(_dispatch_mode)
    try:
        return func(*args, **kwargs)
    finally:
        torch._C._pop_torch_dispatch_stack(None)  # type: ignore[attr-defined]
        _thread.dispatching = False
