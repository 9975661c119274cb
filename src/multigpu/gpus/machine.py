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


class _Entry:
    """What a thread's `with` block found and has to leave as it was."""

    def __init__(self, backing: torch.device) -> None:
        self._blocks = interception.blocks()
        self._undo = contextlib.ExitStack()
        self._undo.enter_context(suitable_kernels(backing))
        self._undo.callback(self._blocks.leave)
        self._blocks.enter()
        self._default_device = torch.utils._device.CURRENT_DEVICE

    def is_of_this_thread(self) -> bool:
        return self._blocks is interception.blocks()

    def undo(self) -> None:
        # The default device is one thread's: another cannot put it back.
        with self._undo:
            now = torch.utils._device.CURRENT_DEVICE
            if self.is_of_this_thread() and self._default_device != now:
                torch.set_default_device(self._default_device)


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
        self._entries: list[_Entry] = []
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
            self._entries.append(_Entry(self.backing))
        return self

    def __exit__(self, *error: Any) -> None:
        """Switch off, also from another thread. Raises RuntimeError if that was done before."""
        with active.lock:
            entry = self._take_entry()
            try:
                entry.undo()
            finally:
                if active.remove(self):
                    switching.switch_off()

    def _take_entry(self) -> _Entry:
        """This thread's latest entry, else the latest of any: a generator may end in another."""
        if not self._entries:
            raise RuntimeError(
                f"{self} are not switched on: this machine was left already. Leave it once for "
                "each time it was entered; `with virtual_gpus(...)` does that by itself."
            )
        own = [entry for entry in self._entries if entry.is_of_this_thread()]
        entry = (own or self._entries)[-1]
        self._entries.remove(entry)
        return entry

    def __repr__(self) -> str:
        return f"<{len(self.gpus)} virtual GPUs on {self.backing}>"
