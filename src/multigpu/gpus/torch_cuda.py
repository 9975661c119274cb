"""torch.cuda and torch.accelerator for virtual GPUs.

Replaces the functions of torch._C on which both modules are built, and a few names of the modules
themselves that a build without CUDA lacks.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils.dlpack

from multigpu.gpus import active, comm, streams
from multigpu.gpus.devices import gpu_at
from multigpu.gpus.patches import Patches
from multigpu.gpus.properties import properties_of
from multigpu.gpus.statistics import allocator_statistics
from multigpu.gpus.tensor import VirtualTensor
from multigpu.gpus.torch_generator import DefaultGenerators, Generator


def _current() -> int:
    return active.machine_in_use().current


def _set_device(index: int) -> None:
    active.machine_in_use().current = gpu_at(index).index


def _exchange_device(index: int) -> int:
    """Make GPU `index` the current one and return the one before; -1 changes nothing."""
    if index < 0:
        return -1
    before = _current()
    _set_device(index)
    return before


def _count() -> int:
    machine = active.virtual_machine()
    return 0 if machine is None else len(machine.gpus)


def _reset_peak(index: int) -> None:
    gpu_at(index).meter.reset_peak()


def _is_forked() -> bool:
    return active.machine_in_use().forked


def _memory_info(index: int) -> tuple[int, int]:
    memory = gpu_at(index).meter.read()
    return memory.limit - memory.allocated, memory.limit


def _stream_data(index: int) -> tuple[int, int, int]:
    stream = streams.current_stream(index)
    return stream.stream_id, stream.device_index, stream.device_type


def _set_stream(stream_id: int, device_index: int, device_type: int) -> None:
    streams.set_stream(streams.Stream(stream_id=stream_id, device_index=device_index))


def _refuse_virtual(to_dlpack: Any) -> Any:
    """torch.utils.dlpack.to_dlpack would hand out the address of nothing."""

    def export(tensor: torch.Tensor) -> Any:
        return tensor.__dlpack__() if isinstance(tensor, VirtualTensor) else to_dlpack(tensor)

    return export


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Nothing to wait for and nothing to free: a virtual GPU does everything at once."""


def _synchronizing(synchronize: Any) -> Any:
    """Waits for the real GPU that backs the virtual ones, if one does."""

    def wait(index: int | None = None) -> None:
        backing = active.machine_in_use().backing
        if backing.type == "cuda":
            synchronize(backing.index or 0)

    return wait


def _lazy_init() -> None:
    """Allows torch.cuda's own functions to go on; anyone else asked for CUDA in the core.

    The core calls this for a device="cuda" that was not intercepted. It must not succeed there: the
    core would remember for the rest of the process that CUDA is ready.
    """
    if not sys._getframe(1).f_globals.get("__name__", "").startswith("torch.cuda"):
        raise RuntimeError(
            "virtual GPUs did not see this call. Either its thread was started before they were "
            "switched on, or it is one of the few functions they do not cover: name the device "
            "with .to(...) instead."
        )


_CORE: dict[str, Any] = {
    "_cuda_getDevice": _current,
    "_cuda_setDevice": _set_device,
    "_cuda_emptyCache": _nothing,
    "_cuda_ipc_collect": _nothing,
    "_cuda_memoryStats": allocator_statistics,
    "_cuda_resetAccumulatedMemoryStats": _nothing,
    "_cuda_resetPeakMemoryStats": _reset_peak,
    "_cuda_getCurrentStream": _stream_data,
    "_cuda_getDefaultStream": lambda index: (0, index, 1),
    "_cuda_setStream": _set_stream,
    "_cuda_canDeviceAccessPeer": lambda device, peer: True,
    "_cuda_getArchFlags": lambda: "sm_80",
    "_accelerator_getAccelerator": lambda: torch.device("cuda"),
    "_accelerator_getDeviceIndex": _current,
    "_accelerator_setDeviceIndex": _set_device,
    "_accelerator_exchangeDevice": _exchange_device,
    "_accelerator_maybeExchangeDevice": _exchange_device,
    "_accelerator_getStream": streams.current_stream,
    "_accelerator_setStream": streams.set_stream,
    "_accelerator_isAllocatorInitialized": lambda: True,
    "_accelerator_emptyCache": _nothing,
    "_accelerator_emptyHostCache": _nothing,
    "_accelerator_getDeviceStats": allocator_statistics,
    "_accelerator_resetAccumulatedStats": _nothing,
    "_accelerator_resetPeakStats": _reset_peak,
    "_accelerator_getMemoryInfo": _memory_info,
    "_broadcast": comm.broadcast,
    "_broadcast_out": comm.broadcast_out,
    "_broadcast_coalesced": comm.broadcast_coalesced,
    "_scatter": comm.scatter,
    "_scatter_out": comm.scatter_out,
    "_gather": comm.gather,
    "_gather_out": comm.gather_out,
}

_CUDA: dict[str, Any] = {
    "_lazy_init": _lazy_init,
    "_initialized": True,
    "_cudart": SimpleNamespace(cudaMemGetInfo=_memory_info),
    "_exchange_device": _exchange_device,
    "_maybe_exchange_device": _exchange_device,
    "_get_device_properties": properties_of,
    "_is_in_bad_fork": _is_forked,
    "is_available": lambda: True,
    "device_count": _count,
    "default_generators": DefaultGenerators(),
    "Stream": streams.Stream,
    "ExternalStream": streams.ExternalStream,
    "Event": streams.Event,
    "current_stream": lambda device=None: streams.current_stream(
        torch.cuda._utils._get_device_index(device, optional=True)
    ),
    "default_stream": lambda device=None: streams.default_stream(
        torch.cuda._utils._get_device_index(device, optional=True)
    ),
    "is_bf16_supported": lambda including_emulation=True: True,
}


def install(patches: Patches) -> None:
    """Let torch see the current virtual machine's GPUs."""
    wait = _synchronizing(torch._C._accelerator_synchronizeDevice)
    patches.set(torch._C, "_accelerator_synchronizeDevice", wait)
    patches.set(torch._C, "_cuda_synchronize", wait)
    for name, value in _CORE.items():
        patches.set(torch._C, name, value)
    for name, value in _CUDA.items():
        patches.set(torch.cuda, name, value)
    patches.set(torch, "Generator", Generator)
    patches.set(torch, "Stream", streams.Stream)
    patches.set(torch, "Event", streams.Event)
    patches.set(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    patches.set(torch.cuda.random, "device_count", _count)
    patches.set(torch.cuda.graphs, "_cuda_isCurrentStreamCapturing", lambda: False)
    patches.wrap(torch.utils.dlpack, "to_dlpack", _refuse_virtual)
    patches.set(torch.nn.parallel._functions, "_streams", None)
    patches.set(torch.cuda.nccl, "is_available", lambda tensors: False)
