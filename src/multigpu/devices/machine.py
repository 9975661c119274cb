"""The machine whose GPUs torch sees: the real one, or a virtual one, switched on by `with`."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import graph
from torch.autograd.function import BackwardCFunction
from torch.distributed import rpc
from torch.utils._device import DeviceContext

from multigpu.devices import comm, errors, functions, gpu, torch_cuda
from multigpu.devices.gate import device_context, gate, intercepted, saved_tensors_hooks
from multigpu.devices.gpu import Gpu, running, virtual_machine
from multigpu.devices.meters import Copy, Memory, Traffic, parse_bytes
from multigpu.devices.tensor import VirtualTensor, storage_to
from multigpu.devices.threads import around_new_threads


@dataclass(frozen=True, eq=False)
class _Entry:
    """One entry into a machine, and what must be restored afterwards."""

    machine: VirtualMachine
    thread: threading.Thread
    default_device: torch.device
    kernels: contextlib.ExitStack


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
        self.forked = False  # this process was forked while the machine was switched on
        self._thread = threading.local()
        self.grow(count)

    def grow(self, count: int) -> None:
        if self.gpus and self.backing.type == "cuda":  # all share the memory of one
            self._limit = self._limit * len(self.gpus) // count
            for gpu in self.gpus:
                gpu.meter.limit = gpu.meter.allowed = self._limit
        for index in range(len(self.gpus), count):
            self.gpus.append(Gpu(self, index, limit=self._limit))

    @property
    def devices(self) -> list[torch.device]:
        """cuda:0, cuda:1, ..."""
        return [gpu.device for gpu in self.gpus]

    @property
    def current(self) -> int:
        """Index of the calling thread's current GPU."""
        return getattr(self._thread, "current", 0)

    @current.setter
    def current(self, index: int) -> None:
        self._thread.current = index

    @property
    def streams(self) -> dict[int, Any]:
        """The calling thread's current stream of each GPU, where it has set one."""
        return vars(self._thread).setdefault("streams", {})  # type: ignore[no-any-return]

    def memory(self, index: int) -> Memory:
        """Bytes on GPU `index`: allocated, peak and limit."""
        return self.gpus[index].meter.read()

    def __enter__(self) -> VirtualMachine:
        with gpu.switching:
            if not gpu.entered:
                _switch_on()
            kernels = contextlib.ExitStack()
            kernels.enter_context(suitable_kernels(self.backing))
            running.for_blocks = gate.switch_on() or running.for_blocks
            before = torch.get_default_device()
            gpu.entered.append(_Entry(self, threading.current_thread(), before, kernels))
        return self

    def __exit__(self, *error: Any) -> None:
        """Switch off, also from another thread. Raises RuntimeError if it is already off."""
        with gpu.switching:
            mine = [entry for entry in gpu.entered if entry.machine is self]
            if not mine:
                raise RuntimeError(f"{self} are not switched on: exit once for each time entered")
            # This thread's latest entry, else the latest of any: a generator may end in another.
            here = [entry for entry in gpu.entered if entry.thread is threading.current_thread()]
            entry = ([entry for entry in mine if entry in here] or mine)[-1]
            try:
                if entry in here:  # the default device and the modes are one thread's own
                    before, now = entry.default_device, torch.get_default_device()
                    if running.for_blocks and here == [entry]:
                        gate.switch_off()
                        running.for_blocks = False
                    if before != now:
                        torch.set_default_device(None if before.type == "cpu" else before)
            finally:
                entry.kernels.close()
                gpu.entered.remove(entry)
                if not gpu.entered:
                    _undo.close()

    def __repr__(self) -> str:
        return f"<{len(self.gpus)} virtual GPUs on {self.backing}>"


# Where the data of virtual GPUs really are: on the CPU, or on one real GPU


def backing_device(name: str) -> torch.device:
    """The device `name`, ready for use. Raises ValueError if it cannot be a backing."""
    device = torch.device(name)
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise ValueError(f'backing={name!r}: use "cpu", or a real GPU such as "cuda:0"')
    if virtual_machine() is not None:
        raise ValueError(f"backing={name!r}: real GPUs are hidden while virtual ones are on")
    if (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"backing={name!r}: this machine has {torch.cuda.device_count()} GPUs. Leave backing "
            "out to use the CPU."
        )
    torch.cuda.init()  # type: ignore[no-untyped-call]  # while torch.cuda is the real one
    return torch.device("cuda", device.index or 0)


@contextlib.contextmanager
def suitable_kernels(backing: torch.device) -> Iterator[None]:
    """Keep the core from kernels that only a CPU has, if the data are on a real GPU.

    It takes the shells for CPU tensors, and for LSTMs and attention would choose such kernels.
    """
    if backing.type == "cpu":
        yield
        return
    attention: Any = torch.backends.cuda
    mkldnn: Any = torch.backends.mkldnn
    flash = attention.flash_sdp_enabled()
    attention.enable_flash_sdp(False)
    enabled, *_ = mkldnn.set_flags(_enabled=False, _fp32_precision=None)
    try:
        yield
    finally:
        mkldnn.set_flags(_enabled=enabled, _fp32_precision=None)
        attention.enable_flash_sdp(flash)


# Real GPUs or virtual ones


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
    """The machine whose GPUs torch sees now: the innermost virtual one, else the real one."""
    return virtual_machine() or _real


def virtual_gpus(
    count: int, *, memory: int | str = "16 GiB", backing: str = "cpu"
) -> VirtualMachine:
    """`count` virtual GPUs of `memory` bytes each, for the duration of a `with` block.

    `backing` is where their data really are: "cpu", or one real GPU such as "cuda:0".
    """
    return VirtualMachine(count, memory=memory, backing=backing)


def gpus(count: int) -> list[torch.device]:
    """`count` GPUs: this machine's if it has as many, else virtual ones from now on."""
    if count < 1:
        raise ValueError(f"gpus({count}): ask for at least one GPU")
    machine = current_machine()
    if len(machine.devices) >= count:
        return machine.devices[:count]
    if isinstance(machine, VirtualMachine):
        if machine not in _for_good:
            raise ValueError(
                f"gpus({count}): virtual_gpus({len(machine.gpus)}) is switched on and has only "
                f"{len(machine.gpus)}. Request {count} there."
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
    """`tensor.to(device)`, also counted by the traffic meter on real GPUs."""
    source = tensor.device
    copied = tensor.to(device)
    if virtual_machine() is None and copied.device != source:
        _real.traffic.add(Copy(str(source), str(copied.device), tensor.nbytes))
    return copied


# What is replaced in torch while virtual GPUs are on, and how it all comes back

_MISSING = object()
_undo = contextlib.ExitStack()  # puts everything back, last change first


def _switch_on() -> None:
    """Replace torch's functions; after an error nothing stays replaced."""
    try:
        for module, replacements in (*torch_cuda.REPLACEMENTS, *comm.REPLACEMENTS):
            for name, value in replacements.items():
                if hasattr(module, name):
                    _replace(module, name, value)
        _replace(torch.UntypedStorage, "to", storage_to)
        _wrap(torch.nn.Module, "to", functions.module_to)
        for lazy in (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer):
            _wrap(lazy, "__new__", functions.lazy_parameter)
            _wrap(lazy, "materialize", functions.materialize)
        _wrap(torch.utils.dlpack, "to_dlpack", functions.refused(errors.no_dlpack))
        for export in ("export", "draft_export"):
            _wrap(torch.export, export, functions.refused(errors.no_export))
        if hasattr(torch.jit.ScriptModule, "save"):  # not with PYTORCH_JIT=0
            for kind in ("ScriptModule", "RecursiveScriptModule"):
                for save in ("save", "save_to_buffer"):
                    _wrap(getattr(torch.jit, kind), save, functions.refused(errors.no_jit_save))
        # Threads that start while virtual GPUs are on intercept as long as they live. (A mode that
        # is on when its thread has ended is dropped by C++, after `join` has returned. It needs
        # Python's lock for that, and if the program is ending just then, it aborts.)
        _undo.enter_context(around_new_threads(lambda thread: gate.functions()))
        _wrap(futures.thread._WorkItem, "run", intercepted)  # however old the pool's threads
        backward = functions.backward(graph._engine_run_backward)
        _replace(graph, "_engine_run_backward", backward)
        _replace(torch.autograd, "_engine_run_backward", backward)
        _wrap(graph.saved_tensors_hooks, "__init__", saved_tensors_hooks)
        _wrap(DeviceContext, "__torch_function__", device_context)
        _wrap(BackwardCFunction, "apply", functions.custom_backward)
        _wrap(torch.autograd.profiler.profile, "__init__", torch_cuda.profile_without_gpu)
        ForkingPickler.register(VirtualTensor, errors.no_sharing)  # for good: ours alone
        _replace(torch, "compile", errors.no_compile)
        if rpc.is_available():  # not on Windows
            _wrap(rpc.internal, "_run_function", intercepted)  # C++ calls it, in its own threads
            _wrap(rpc.internal._InternalRPCPickler, "serialize", functions.refused(errors.no_rpc))
        _replace(dist, "Reducer", functions.Reducer)
        for name in ("_broadcast_coalesced", "_verify_params_across_processes"):
            _wrap(dist, name, functions.on_data)
        # Optimizers update many tensors at once by default on CUDA, if they know the tensors' type.
        optimizer: Any = sys.modules["torch.optim.optimizer"]  # torch.optim hides the name
        known = optimizer._foreach_supported_types
        _replace(optimizer, "_foreach_supported_types", [*known, VirtualTensor])
    except BaseException:
        _undo.close()
        raise


def _replace(owner: Any, name: str, value: Any) -> None:
    """`owner.name = value`, until `_undo.close`."""
    before = vars(owner).get(name, _MISSING)
    if before is _MISSING:
        _undo.callback(delattr, owner, name)
    else:
        _undo.callback(setattr, owner, name, before)
    setattr(owner, name, value)


def _wrap(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
    """`owner.name = wrapper(owner.name)`, until `_undo.close`."""
    _replace(owner, name, wrapper(getattr(owner, name)))
