"""A machine of virtual GPUs, with its meters; it is switched on by `with`."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import torch

from multigpu.gpus import active, interception, switching
from multigpu.gpus.backing import backing_device, suitable_kernels
from multigpu.gpus.gpu import Gpu
from multigpu.gpus.memory import Memory, parse_bytes
from multigpu.gpus.traffic import Traffic


class _PerThread(threading.local):
    """What each thread has of its own."""

    current = 0  # index of its current GPU

    def __init__(self) -> None:
        self.entries: list[_Entry] = []


class _Entry:
    """What a thread's `with` block found and has to leave as it was."""

    def __init__(self, backing: torch.device) -> None:
        self._undo = contextlib.ExitStack()
        self._undo.enter_context(suitable_kernels(backing))
        if interception.switch_on():
            self._undo.callback(interception.switch_off)
        self._default_device = torch.utils._device.CURRENT_DEVICE

    def undo(self) -> None:
        if self._default_device != torch.utils._device.CURRENT_DEVICE:
            torch.set_default_device(self._default_device)
        self._undo.close()


class VirtualMachine:
    """`count` virtual GPUs of `memory` bytes each; see `multigpu.virtual_gpus`.

    Raises ValueError for a count below 1, a size that cannot be read, an impossible backing.
    """

    is_virtual = True

    def __init__(self, count: int, *, memory: int | str = "16 GiB", backing: str = "cpu") -> None:
        if count < 1:
            raise ValueError(f"virtual_gpus({count}): ask for at least one GPU")
        self._limit = parse_bytes(memory)
        self.backing = backing_device(backing)
        self.traffic = Traffic()
        self.gpus: list[Gpu] = []
        self.forked = False  # whether this process was forked while the machine was switched on
        self._thread = _PerThread()
        self.grow(count)

    def grow(self, count: int) -> None:
        """Add GPUs until there are `count`."""
        for index in range(len(self.gpus), count):
            self.gpus.append(Gpu(self, index, limit=self._limit))

    @property
    def devices(self) -> list[torch.device]:
        """cuda:0, cuda:1, ..."""
        return [gpu.device for gpu in self.gpus]

    @property
    def current(self) -> int:
        """Index of the calling thread's current GPU."""
        return self._thread.current

    @current.setter
    def current(self, index: int) -> None:
        self._thread.current = index

    def memory(self, index: int) -> Memory:
        """Bytes on GPU `index`: allocated, peak and limit."""
        return self.gpus[index].meter.read()

    def __enter__(self) -> VirtualMachine:
        with active.lock:
            if active.virtual_machine() is None:
                switching.switch_on()
            active.push(self)
        self._thread.entries.append(_Entry(self.backing))
        return self

    def __exit__(self, *error: Any) -> None:
        self._thread.entries.pop().undo()
        with active.lock:
            if active.remove(self):
                switching.switch_off()

    def __repr__(self) -> str:
        return f"<{len(self.gpus)} virtual GPUs on {self.backing}>"
