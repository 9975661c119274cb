"""Where Python code runs without interception although virtual GPUs are on, and gets it back.

New threads start without PyTorch's modes, `Tensor.backward` switches them off, and hooks on saved
tensors are called from inside an operator.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent import futures
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.autograd import graph

from multigpu.gpus import interception
from multigpu.gpus.functions import roots_checked
from multigpu.gpus.patches import Patches
from multigpu.gpus.threads import around_new_threads

_saved: Any = torch._C._autograd


def install(patches: Patches) -> None:
    """Intercept in threads, in thread pools, in backward passes and in hooks on saved tensors."""
    patches.enter(around_new_threads(_switched_on))
    patches.wrap(futures.thread._WorkItem, "run", _intercepted)  # however old the pool's threads
    backward = _backward(graph._engine_run_backward)
    patches.set(graph, "_engine_run_backward", backward)
    patches.set(torch.autograd, "_engine_run_backward", backward)
    patches.wrap(_saved, "_push_saved_tensors_default_hooks", _saved_tensors_hooks)


def _intercepted(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, run with interception on."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with interception.functions():
            return function(*args, **kwargs)

    return run


def _switched_on(_: threading.Thread) -> AbstractContextManager[None]:
    """Threads that are started while virtual GPUs are on intercept as long as they live."""
    interception.switch_on()
    return nullcontext()


def _backward(run_backward: Callable[..., Any]) -> Callable[..., Any]:
    """In a backward pass the core calls operators by itself, and hooks and custom Functions."""

    @functools.wraps(run_backward)
    def run(roots: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
        with interception.functions():
            grads = roots_checked(roots, grads)
            return interception.with_operators(run_backward, (roots, grads, *args), kwargs)

    return run


def _saved_tensors_hooks(push: Callable[..., None]) -> Callable[..., None]:
    def push_intercepted(pack: Callable[..., Any], unpack: Callable[..., Any]) -> None:
        push(_intercepted(pack), _intercepted(unpack))

    return push_intercepted
