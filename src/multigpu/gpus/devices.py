"""From the device a caller names to the device PyTorch's core is given.

"cuda:1", 1, torch.device("cuda") and None all mean something; the core must get the carrier of
that GPU (see gpu.py), or the plain CPU.
"""

from __future__ import annotations

from typing import Any

import torch

from multigpu.gpus import active, errors
from multigpu.gpus.gpu import Gpu

CPU = torch.device("cpu")


def gpu_at(index: int) -> Gpu:
    """GPU `index` of the current machine. Raises CUDA's error if there is none."""
    machine = active.machine_in_use()
    if machine.forked:
        raise errors.forked()
    if not 0 <= index < len(machine.gpus):
        raise errors.invalid_device_ordinal()
    return machine.gpus[index]


def named(device: Any) -> torch.device:
    """The torch.device that a caller means; a bare number is a GPU, as under CUDA."""
    if isinstance(device, torch.device):
        return device
    if isinstance(device, int):
        return torch.device("cuda", device)
    return torch.device(device)


def core_device(device: Any) -> torch.device:
    """What the core must be given for `device`: a GPU's carrier, the CPU, or `device` itself."""
    device = named(device)
    if device.type == "cuda":
        index = active.machine_in_use().current if device.index is None else device.index
        return gpu_at(index).carrier
    return CPU if device.type == "cpu" else device


def gpu_of(carrier: torch.device | None) -> Gpu | None:
    """The GPU of a carrier; None for any other device."""
    if carrier is None or carrier.type != "cpu" or not carrier.index:
        return None
    return gpu_at(carrier.index - 1)
