"""Real GPUs or virtual ones: `gpus(n)`, `current_machine()` and the copy that both meter."""

from __future__ import annotations

from typing import Any

import torch

from multigpu.gpus import active
from multigpu.gpus.machine import VirtualMachine
from multigpu.gpus.memory import Memory
from multigpu.gpus.traffic import Copy, Traffic


class RealMachine:
    """The GPUs that this machine really has. Its traffic knows only copies made by `copy_to`."""

    is_virtual = False

    def __init__(self) -> None:
        self.traffic = Traffic()

    @property
    def devices(self) -> list[torch.device]:
        """cuda:0, cuda:1, ...; empty where there are none."""
        return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]

    def memory(self, index: int) -> Memory:
        """Bytes on GPU `index` as PyTorch's allocator counts them."""
        return Memory(
            allocated=torch.cuda.memory_allocated(index),
            peak=torch.cuda.max_memory_allocated(index),
            limit=torch.cuda.get_device_properties(index).total_memory,
        )

    def __repr__(self) -> str:
        return f"<{len(self.devices)} real GPUs>"


_MEMORY = 16 * 2**30  # of each virtual GPU that `gpus` makes on the CPU
_real = RealMachine()
_for_good: list[VirtualMachine] = []  # the machine that `gpus` switched on, if it did


def current_machine() -> VirtualMachine | RealMachine:
    """The machine whose GPUs torch sees now."""
    return active.virtual_machine() or _real


def gpus(count: int) -> list[torch.device]:
    """See `multigpu.gpus.gpus`."""
    if count < 1:
        raise ValueError(f"gpus({count}): ask for at least one GPU")
    machine = current_machine()
    if len(machine.devices) >= count:
        return machine.devices[:count]
    if isinstance(machine, VirtualMachine):
        if machine not in _for_good:
            raise ValueError(
                f"gpus({count}): virtual_gpus({len(machine.gpus)}) is switched on and has only "
                f"{len(machine.gpus)}. Ask there for {count}."
            )
        machine.grow(count)
    else:
        backing = "cuda:0" if machine.devices else "cpu"
        where = "GPU 0" if machine.devices else "the CPU"
        has = "1 GPU" if len(machine.devices) == 1 else f"{len(machine.devices)} GPUs"
        print(f"This machine has {has}, not {count}: using {count} virtual ones on {where}.")
        memory = machine.memory(0).limit // count if machine.devices else _MEMORY
        machine = VirtualMachine(count, memory=memory, backing=backing)
        machine.__enter__()
        _for_good.append(machine)
    return machine.devices


def copy_to(tensor: torch.Tensor, device: Any) -> torch.Tensor:
    """See `multigpu.gpus.copy_to`."""
    source = tensor.device
    copied = tensor.to(device)
    if active.virtual_machine() is None and copied.device != source:
        size = tensor.numel() * tensor.element_size()
        _real.traffic.add(Copy(str(source), str(copied.device), size))
    return copied
