"""Gradients from users (roots of a backward pass, custom Functions) must be on the right GPU.

The core checks the device of every gradient that a node of the graph returns, but not for tensor
subclasses. This repeats the check for the gradients that users make.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from multigpu.gpus.devices import gpu_of
from multigpu.gpus.moves import moved
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
                expected = _named(before._input_metadata[slot].device)
                _check(f"Function {node.name()} returned an ", position, grad, expected)
        return result

    return backward


def roots_checked(roots: Any, grads: Any) -> tuple[Any, ...]:
    """`grads`, the gradients a backward pass starts with, each on the device of its root.

    Raises CUDA's RuntimeError for one that is elsewhere. The core moves single numbers.
    """
    return tuple(
        _root_checked(position, root, grad)
        for position, (root, grad) in enumerate(zip(roots, grads, strict=True))
    )


def _root_checked(position: int, root: Any, grad: Any) -> Any:
    if not isinstance(grad, torch.Tensor):
        return grad
    if isinstance(root, torch.Tensor):
        expected = root.device
    else:  # a GradientEdge
        expected = _named(root.node._input_metadata[root.output_nr].device)
    _check("", position, grad, expected)
    return grad if grad.device == expected else moved(grad, expected)


def _named(core_device: torch.device) -> torch.device:
    """The device as the user knows it."""
    gpu = gpu_of(core_device)
    return torch.device("cpu") if gpu is None else gpu.device


def _check(origin: str, position: int, grad: torch.Tensor, expected: torch.device) -> None:
    if grad.device != expected and grad.ndim:  # the core moves single numbers by itself
        raise RuntimeError(
            f"{origin}invalid gradient at index {position} - expected device {expected} "
            f"but got {grad.device}"
        )
