"""One virtual GPU, how it is named, and which machine is switched on.

A virtual GPU has two devices. Python code sees `device`, for example cuda:1. PyTorch's C++ core
sees `carrier`, for example cpu:2: an index that no CPU has, so a tensor that carries it cannot be
taken for a CPU tensor, while autograd treats it as one (which it can do without CUDA). Device
rules, views, `.to`, gradients of copies: all that stays PyTorch's own code.
"""

from __future__ import annotations

import functools
import os
import struct
import threading
import weakref
from hashlib import blake2b
from typing import Any

import torch

from multigpu.devices import errors
from multigpu.devices.meters import Copy, MemoryMeter

CPU = torch.device("cpu")
Machine = Any  # a machine.VirtualMachine: that module needs this one


class Gpu:
    """GPU `index` of `machine`, with `limit` bytes of memory."""

    def __init__(self, machine: Machine, index: int, *, limit: int) -> None:
        self.machine = machine
        self.index = index
        self.device = torch.device("cuda", index)
        self.carrier = torch.device("cpu", index + 1)
        self.backing = machine.backing  # where its data really are
        self.meter = MemoryMeter(limit, functools.partial(errors.out_of_memory, index))
        self.generator = VirtualGenerator(index, self.backing)

    def __deepcopy__(self, memo: dict[int, Any]) -> Gpu:
        """Itself: what copies a tensor with its attributes (async_save) means the same GPU."""
        return self

    def hold(self, data: torch.Tensor) -> None:
        """Count the storages of `data` as this GPU's. Raises torch.OutOfMemoryError."""
        if data.layout is torch.strided:
            self.meter.hold(data.untyped_storage())
        else:
            self.meter.hold(data._indices().untyped_storage())
            self.meter.hold(data._values().untyped_storage())


# By the address of the core's generator: what an operator receives is a new object around it.
_generators: weakref.WeakValueDictionary[int, VirtualGenerator] = weakref.WeakValueDictionary()


class VirtualGenerator(torch.Generator):
    """`torch.Generator(device="cuda:1")`: draws on the GPU's backing, and says it is cuda:1.

    As CUDA's, its state is 16 bytes: a seed, and an offset that grows with each draw. What a draw
    gives depends on these two alone. The numbers differ from those of a CPU generator with the same
    seed, so that no program comes to rely on equal numbers.
    """

    _device: torch.device
    _seed: int
    _offset: int

    def __new__(cls, index: int, backing: torch.device) -> VirtualGenerator:
        generator: Any = super().__new__(cls, backing)  # type: ignore[call-arg]
        generator._device = torch.device("cuda", index)
        _generators[generator._cdata] = generator
        generator.manual_seed(torch.default_generator.initial_seed())
        return generator  # type: ignore[no-any-return]

    def __init__(self, index: int, backing: torch.device) -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._device

    def manual_seed(self, seed: int) -> VirtualGenerator:
        self._seed, self._offset = int(seed), 0
        return self

    def seed(self) -> int:
        self.manual_seed(super().seed() % 2**63)
        return self._seed

    def initial_seed(self) -> int:
        return self._seed

    def get_state(self) -> torch.Tensor:
        state = struct.pack("<QQ", self._seed % 2**64, self._offset)
        return torch.frombuffer(bytearray(state), dtype=torch.uint8)

    def set_state(self, new_state: torch.Tensor) -> VirtualGenerator:
        self._seed, self._offset = struct.unpack("<QQ", bytes(new_state.tolist()))
        return self

    def begin_draw(self) -> None:
        """Before an operator draws with it."""
        mixed = blake2b(struct.pack("<QQ", self._seed % 2**64, self._offset), digest_size=8)
        super().manual_seed(int.from_bytes(mixed.digest(), "little"))
        self._offset += 4  # as CUDA's for a small tensor: always a multiple of 4


def drawing(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """`generator`, before an operator on `device` draws with it.

    Raises CUDA's error unless it is for a device of this type and index.
    """
    found = _generators.get(generator._cdata, generator)  # type: ignore[attr-defined]
    if found.device.type != device.type:
        raise RuntimeError(
            f"Expected a '{device.type}' device type for generator but found '{found.device.type}'"
        )
    if found.device.index != device.index:
        raise RuntimeError(
            f"Expected a generator of {device} but found one of {found.device}: each GPU has its "
            "own"
        )
    if isinstance(found, VirtualGenerator):
        found.begin_draw()
    return generator


class Running(threading.local):
    """What a thread is currently doing."""

    intercepts = False  # functions of torch come to the gate
    operators = False  # operators without a virtual tensor come there, too
    for_blocks = False  # that began with a block of this thread, and ends with its last one
    hands_on = False  # an operator goes to a class of tensors around virtual ones
    in_core = False  # PyTorch's own code runs, for which a GPU is its carrier


running = Running()

# Which machine is switched on

# One stack for the whole process: the machine that was entered last is the current one, in every
# thread. `with` blocks on one thread nest; blocks on several threads share the stack.
switching = threading.RLock()  # hold it to change the stack
entered: list[Any] = []  # of machine._Entry


def virtual_machine() -> Machine | None:
    """The current virtual machine, or None if torch is unpatched."""
    return entered[-1].machine if entered else None


def machine_in_use() -> Machine:
    """The current virtual machine.  Raises RuntimeError if it was left."""
    if not entered:
        raise RuntimeError(
            "the virtual GPUs are switched off: use them and their streams, events and generators "
            "inside the block, and copy the tensors you need afterwards with .cpu() there."
        )
    return entered[-1].machine


def _after_fork() -> None:
    """CUDA cannot be used in a forked child, nor can machines switched on before the fork."""
    for entry in entered:
        entry.machine.forked = True


os.register_at_fork(after_in_child=_after_fork)


def note_copy(source: Gpu | None, target: Gpu | None, size: int) -> None:
    """Count a copy of `size` bytes, unless it stays on one device. None is the CPU."""
    if source is target:
        return
    machine = virtual_machine() or (target or source).machine  # type: ignore[union-attr]
    origin, destination = ("cpu" if gpu is None else str(gpu.device) for gpu in (source, target))
    machine.traffic.add(Copy(origin, destination, size))


# From the device a caller names ("cuda:1", 1, torch.device("cuda"), ...) to the one the core gets


def gpu_at(index: int | None) -> Gpu:
    """GPU `index` of the current machine, or its current one. Raises CUDA's error without one."""
    machine = machine_in_use()
    if machine.forked:
        raise errors.forked()
    index = machine.current if index is None else index
    if not 0 <= index < len(machine.gpus):
        raise errors.invalid_device_ordinal()
    return machine.gpus[index]  # type: ignore[no-any-return]


def cuda_index(device: Any) -> int | None:
    """The number of the GPU that a caller of torch.cuda means; None is the current one."""
    if device is None or isinstance(device, int):
        return device
    device = named(device)
    if device.type != "cuda":
        gpu = gpu_of(device)  # a carrier, in code of torch's own that runs in the core
        if gpu is None:
            raise ValueError(f"Expected a cuda device, but got: {device}")
        return gpu.index
    return device.index  # type: ignore[no-any-return]


def named(device: Any) -> torch.device:
    """The torch.device that a caller means; a bare number is a GPU, as under CUDA."""
    if isinstance(device, torch.device):
        return device
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)


def core_device(device: Any) -> torch.device:
    """What the core must be given for `device`: a GPU's carrier, the CPU, or `device` itself."""
    device = named(device)
    if device.type == "cuda" and entered:
        return gpu_at(device.index).carrier
    return CPU if device.type == "cpu" else device


def gpu_of(carrier: torch.device | None) -> Gpu | None:
    """The GPU of a carrier; None for any other device."""
    if carrier is None or carrier.type != "cpu" or not carrier.index:
        return None
    return gpu_at(carrier.index - 1)
