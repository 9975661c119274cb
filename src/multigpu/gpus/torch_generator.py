"""`torch.Generator` and `torch.cuda.default_generators` with virtual GPUs."""

from __future__ import annotations

from typing import Any

import torch

from multigpu.gpus import active
from multigpu.gpus.devices import gpu_at, named
from multigpu.gpus.generators import VirtualGenerator


class DefaultGenerators:
    """torch.cuda.default_generators of the current machine."""

    def __getitem__(self, index: int) -> VirtualGenerator:
        return gpu_at(index).generator

    def __len__(self) -> int:
        return len(active.machine_in_use().gpus)


class _AlsoVirtual(type):
    """Makes the stand-in for torch.Generator recognise every generator."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch._C.Generator)

    def __call__(cls, device: Any = "cpu") -> torch.Generator:
        device = named(device)
        if device.type != "cuda":
            return torch._C.Generator(device)
        gpu = gpu_at(active.machine_in_use().current if device.index is None else device.index)
        return VirtualGenerator(gpu.index, gpu.backing)


class Generator(metaclass=_AlsoVirtual):
    """Stands in for `torch.Generator`: makes a virtual GPU's generator where one is asked for."""
