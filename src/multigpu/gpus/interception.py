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
from torch.overrides import TorchFunctionMode

from multigpu.gpus.operators import dispatch_mode

_core: Any = torch._C


class Interception(TorchFunctionMode):
    """Hands every call of a torch function in this thread to `take`."""

    take: Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]  # calls.intercept

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.take(func, types, args, kwargs or {})


function_mode = Interception()


class Blocks:
    """How many `with virtual_gpus(...)` blocks of one thread are open."""

    def __init__(self) -> None:
        self._open = 0
        self._switched = False  # whether the first of them switched interception on

    def enter(self) -> None:
        """Intercept in this thread, which must be the calling one."""
        self._open += 1
        self._switched = switch_on() or self._switched

    def leave(self) -> None:
        """Undo one `enter`. The last one ends interception, in whatever order blocks are left.

        Another thread cannot reach this one's modes: then the mode stays, and hands every call on
        as it is while no virtual GPU is on, until this thread leaves a block itself.
        """
        self._open -= 1
        if not self._open and self._switched and self is _thread.blocks:
            switch_off()
            self._switched = False


def blocks() -> Blocks:
    """The calling thread's blocks."""
    return _thread.blocks


class _ThreadState(threading.local):
    dispatching = False

    def __init__(self) -> None:
        self.blocks = Blocks()


_thread = _ThreadState()


def _is_on() -> bool:
    depth = _core._len_torch_function_stack()
    return any(_core._get_function_stack_at(level) is function_mode for level in range(depth))


def switch_on() -> bool:
    """Intercept torch functions in this thread; false if that was on already."""
    if _is_on():
        return False
    _core._push_on_torch_function_stack(function_mode)
    return True


def switch_off() -> None:
    """Take the function mode off this thread's stack, wherever it stands."""
    above: list[Any] = []
    while _core._len_torch_function_stack():
        mode = _core._pop_torch_function_stack()
        if mode is function_mode:
            break
        above.append(mode)
    for mode in reversed(above):
        _core._push_on_torch_function_stack(mode)


@contextlib.contextmanager
def functions() -> Iterator[None]:
    """Intercept torch functions inside the block, also where PyTorch has switched that off."""
    with _core._EnableTorchFunction():
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
    _core._push_on_torch_dispatch_stack(dispatch_mode)
    try:
        return func(*args, **kwargs)
    finally:
        _core._pop_torch_dispatch_stack(None)
        _thread.dispatching = False
