"""Custom autograd Functions: their gradients must be on the right GPU.

The core checks the device of every gradient that a node of the graph returns, but not for tensor
subclasses. This repeats the check for the nodes that users write.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from multigpu.gpus.devices import gpu_of
from multigpu.gpus.patches import Patches


def install(patches: Patches) -> None:
    """Check what the `backward` of custom Functions returns."""
    patches.wrap(BackwardCFunction, "apply", _checked)


def _checked(apply: Any) -> Any:
    @functools.wraps(apply)
    def backward(node: Any, *grads: Any) -> Any:
        result = apply(node, *grads)
        returned = result if isinstance(result, tuple) else (result,)
        wanted = [grad for grad, need in zip(returned, node.needs_input_grad, strict=False) if need]
        # An input that needs no gradient has no node before it.
        edges = [edge for edge in enumerate(node.next_functions) if edge[1][0] is not None]
        for grad, (position, (before, slot)) in zip(wanted, edges, strict=False):
            if isinstance(grad, torch.Tensor):
                _check(node.name(), position, grad, before._input_metadata[slot].device)
        return result

    return backward


def _check(name: str, position: int, grad: torch.Tensor, core_device: torch.device) -> None:
    gpu = gpu_of(core_device)
    expected = torch.device("cpu") if gpu is None else gpu.device
    if grad.device != expected and grad.ndim:  # the core moves single numbers by itself
        raise RuntimeError(
            f"Function {name} returned an invalid gradient at index {position} - expected device "
            f"{expected} but got {grad.device}"
        )
