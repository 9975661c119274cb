"""Operators that draw random numbers but cannot be told from which generator."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from multigpu.gpus.gpu import Gpu
from multigpu.gpus.plans import Plan, special
from multigpu.gpus.tensor import VirtualTensor

_lock = threading.Lock()


@special("native_dropout")
def native_dropout(plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Dropout: the result and the mask of what was kept."""
    shell, probability, train = (*args, *kwargs.values())
    if not isinstance(shell, VirtualTensor):
        return func(*args, **kwargs)
    data, gpu = shell._data, shell._gpu
    if train is False:
        return VirtualTensor(data.clone(), gpu), VirtualTensor(
            torch.ones_like(data, dtype=torch.bool), gpu
        )
    kept = torch.empty_like(data, dtype=torch.bool)
    kept.bernoulli_(1 - probability, generator=gpu.generator)
    scale = 0.0 if probability == 1 else 1 / (1 - probability)
    return VirtualTensor(data * kept * scale, gpu), VirtualTensor(kept, gpu)


@contextlib.contextmanager
def lent(gpu: Gpu) -> Iterator[None]:
    """Let the backing's default generator stand in for `gpu`'s: some operators know no other.

    Meanwhile, if the backing is the CPU, a random number that another thread draws on the CPU comes
    from the GPU's generator, too.
    """
    default = gpu.backing_generator
    with _lock:
        state = default.get_state()
        default.set_state(gpu.generator.get_state())
        try:
            yield
        finally:
            gpu.generator.set_state(default.get_state())
            default.set_state(state)
