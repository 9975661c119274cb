"""Switching virtual GPUs on and off for the whole process."""

from __future__ import annotations

import functools
import importlib
import threading
from concurrent import futures
from typing import Any

import torch
import torch.nn.parallel
from torch.autograd import graph

from multigpu.gpus import (  # noqa: F401  # copies, identity and moves register themselves
    copies,
    functions,
    identity,
    interception,
    lazy,
    legacy_types,
    moves,
    pinning,
    randomness,
    storage,
    torch_cuda,
)
from multigpu.gpus.patches import Patches
from multigpu.gpus.tensor import VirtualTensor

_patches = Patches()


def switch_on() -> None:
    """Replace what has to be replaced; an error on the way leaves nothing replaced."""
    try:
        for room in (torch_cuda, storage, lazy, legacy_types, functions):
            room.install(_patches)
        _patches.wrap(threading.Thread, "_bootstrap_inner", _intercepted_thread)
        _patches.wrap(futures.thread._WorkItem, "run", _intercepted_work)
        backward = _intercepted_backward(graph._engine_run_backward)
        _patches.set(graph, "_engine_run_backward", backward)
        _patches.set(torch.autograd, "_engine_run_backward", backward)
        _patches.set(torch, "compile", _refuse_compile)
        # Optimizers update many tensors at once by default on CUDA, if they know the tensors' type.
        optimizer = importlib.import_module("torch.optim.optimizer")  # torch.optim hides the name
        known = optimizer._foreach_supported_types
        _patches.set(optimizer, "_foreach_supported_types", [*known, VirtualTensor])
    except BaseException:
        _patches.undo()
        raise


def switch_off() -> None:
    """Put everything back."""
    _patches.undo()


def _intercepted_thread(bootstrap: Any) -> Any:
    """Threads that are started while virtual GPUs are on intercept from their first line."""

    @functools.wraps(bootstrap)
    def start(thread: threading.Thread) -> None:
        interception.switch_on()
        bootstrap(thread)

    return start


def _intercepted_work(run: Any) -> Any:
    """What is given to a thread pool is intercepted, however old the pool's threads are."""

    @functools.wraps(run)
    def run_intercepted(*args: Any) -> None:
        with interception.functions():
            run(*args)

    return run_intercepted


def _intercepted_backward(run_backward: Any) -> Any:
    """Backward passes run with interception on, which PyTorch switches off in `Tensor.backward`."""

    @functools.wraps(run_backward)
    def run(*args: Any, **kwargs: Any) -> Any:
        with interception.functions():
            return interception.with_operators(run_backward, args, kwargs)

    return run


def _refuse_compile(model: Any = None, **options: Any) -> Any:
    raise RuntimeError(
        "torch.compile does not work on virtual GPUs: it would generate code for a GPU that is "
        "not there. Run the model without it; results are the same."
    )
