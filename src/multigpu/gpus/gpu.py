"""One virtual GPU: its two names, its memory meter and its random numbers.

A virtual GPU has two devices. Python code sees `device`, for example cuda:1. PyTorch's C++ core
sees `carrier`, for example cpu:2: an index that no CPU has, so a tensor that carries it cannot be
taken for a CPU tensor, while autograd treats it as one (which it can do without CUDA). Device
rules, views, `.to`, gradients of copies: all that stays PyTorch's own code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from multigpu.gpus import errors
from multigpu.gpus.generators import VirtualGenerator
from multigpu.gpus.memory import Holding, MemoryFull, MemoryMeter

if TYPE_CHECKING:
    from multigpu.gpus.machine import VirtualMachine


class Gpu:
    """GPU `index` of `machine`, with `limit` bytes of memory."""

    def __init__(self, machine: VirtualMachine, index: int, *, limit: int) -> None:
        self.machine = machine
        self.index = index
        self.device = torch.device("cuda", index)
        self.carrier = torch.device("cpu", index + 1)
        self.backing = machine.backing  # where its data really lie
        self.meter = MemoryMeter(limit)
        self.generator = VirtualGenerator(index, self.backing)

    def hold(self, data: torch.Tensor) -> tuple[Holding, ...]:
        """Count the storages of `data` as this GPU's. Raises torch.OutOfMemoryError."""
        if data.layout is torch.strided:
            return (self.hold_storage(data.untyped_storage()),)
        parts = (data._indices(), data._values())
        return tuple(self.hold_storage(part.untyped_storage()) for part in parts)

    def hold_storage(self, storage: torch.UntypedStorage) -> Holding:
        """Count one storage, or count it anew after it has changed its size."""
        try:
            return self.meter.hold(storage._cdata, storage.nbytes())
        except MemoryFull as full:
            raise self.out_of_memory(full.wanted) from None

    def check(self, size: int) -> None:
        """Raise torch.OutOfMemoryError if `size` more bytes do not fit."""
        if self.meter.allocated + size > self.meter.limit:
            raise self.out_of_memory(size)

    def out_of_memory(self, wanted: int) -> RuntimeError:
        """CUDA's error for an allocation of `wanted` bytes."""
        memory = self.meter.read()
        return errors.out_of_memory(
            self.index, wanted=wanted, allocated=memory.allocated, limit=memory.limit
        )

    def __repr__(self) -> str:
        return f"<virtual GPU {self.index} on {self.backing}>"
