"""torch.cuda and torch.accelerator for virtual GPUs: counting, memory, streams, generators.

What asks the driver is replaced; what is built on it (torch.cuda.device, torch.cuda.stream,
memory_allocated, get_device_name, manual_seed, ...) stays PyTorch's own.

A virtual GPU finishes each operator before the call returns, so every stream is always idle, every
wait is over at once and every event has happened. Events still measure time between `record`s.
"""

from __future__ import annotations

import functools
import itertools
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from multigpu.devices.errors import refusing
from multigpu.devices.gpu import Gpu, VirtualGenerator, cuda_index, gpu_at, machine_in_use, named

_wait_for_real: Any = torch.accelerator.synchronize


def _gpu(device: Any = None) -> Gpu:
    return gpu_at(cuda_index(device))


def _exchange_device(index: int | None) -> int:
    """Make GPU `index` the current one and return the one before; -1 changes nothing."""
    if index is not None and index < 0:
        return -1
    before: int = machine_in_use().current
    machine_in_use().current = gpu_at(index).index
    return before


def enter_device(block: torch.cuda.device) -> None:
    """`with torch.cuda.device(i):` begins. A number below 0 changes nothing."""
    block.prev_idx = _exchange_device(block.idx)


def leave_device(block: torch.cuda.device, *error: Any) -> bool:
    block.idx = _exchange_device(block.prev_idx)
    return False


def set_device(device: Any) -> None:
    _exchange_device(cuda_index(device))


def synchronize(device: Any = None) -> None:
    """Waits for the real GPU that backs the virtual ones, if one does."""
    backing = _gpu(device).backing
    if backing.type == "cuda":
        _wait_for_real(backing.index)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Nothing to wait for and nothing to free: a virtual GPU does everything at once."""


def _lazy_init() -> None:
    """Lets torch.cuda's own functions continue; any other caller has asked the core for CUDA.

    The core calls this for a device="cuda" that was not intercepted. It must not succeed there: the
    core would remember for the rest of the process that CUDA is ready.
    """
    if not sys._getframe(1).f_globals.get("__name__", "").startswith("torch.cuda"):
        raise RuntimeError(
            "virtual GPUs did not intercept this call. Either its thread was started before they "
            "were switched on, or the function is one of the few that they do not support. Use "
            ".to(...) to choose the device instead."
        )


@dataclass(frozen=True)
class DeviceProperties:
    """The memory is the GPU's own; the other values are those of an A100, for code that asks."""

    name: str
    total_memory: int
    uuid: uuid.UUID  # by which programs tell GPUs apart
    major: int = 8
    minor: int = 0
    multi_processor_count: int = 108
    max_threads_per_multi_processor: int = 2048
    warp_size: int = 32
    is_integrated: int = 0
    gcnArchName: str = "Virtual GPU"  # CUDA gives the name


def get_device_properties(device: Any = None) -> DeviceProperties:
    index = cuda_index(device)
    if index is not None and not 0 <= index < len(machine_in_use().gpus):
        raise AssertionError("Invalid device id")
    gpu = gpu_at(index)
    return DeviceProperties("Virtual GPU", gpu.meter.limit, uuid.UUID(int=gpu.index))


# Memory


def memory_stats(device: Any = None) -> dict[str, int]:
    """The meter's values under the names of CUDA's allocator; the rest is 0. There is no cache."""
    meter = _gpu(device).meter
    memory = meter.read()
    stats: dict[str, int] = defaultdict(int, num_ooms=meter.refusals, num_alloc_retries=0)
    for name in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"):
        stats[f"{name}.all.current"] = memory.allocated
        stats[f"{name}.all.peak"] = memory.peak
    return stats


def reset_peak_memory_stats(device: Any = None) -> None:
    _gpu(device).meter.reset_peak()


def reset_accumulated_memory_stats(device: Any = None) -> None:
    _gpu(device).meter.refusals = 0


def mem_get_info(device: Any = None) -> tuple[int, int]:
    memory = _gpu(device).meter.read()
    return memory.limit - memory.allocated, memory.limit


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    meter = _gpu(device).meter
    meter.allowed = int(fraction * meter.limit)


def get_per_process_memory_fraction(device: Any = None) -> float:
    meter = _gpu(device).meter
    return meter.allowed / meter.limit


_no_history = refusing(
    "virtual GPUs have no allocator whose blocks and history could be recorded. For the number "
    "of allocated bytes call torch.cuda.memory_stats(i), or machine.memory(i) of multigpu."
)
_no_sensor = refusing(
    "virtual GPUs have no sensors: no utilization, temperature, power or clock. For the memory in "
    "use call torch.cuda.mem_get_info(i), or machine.memory(i) of multigpu."
)
_no_graphs = refusing("virtual GPUs have no CUDA graphs. Call the model itself, or the function.")
_no_foreign_streams = refusing(
    "virtual GPUs have no streams of other libraries. Use torch.cuda.Stream()."
)


def profile_without_gpu(init: Callable[..., None]) -> Callable[..., None]:
    """`torch.autograd.profiler.profile.__init__`.

    Told to record CUDA, the profiler would print a warning with a stack for each operator.
    """

    @functools.wraps(init)
    def run(profile: Any, *args: Any, use_device: str | None = None, **options: Any) -> None:
        if options.pop("use_cuda", False) or use_device == "cuda":  # the first is the older name
            options["use_cpu"] = True
        init(profile, *args, **options)

    return run


# Streams and events


class Stream:
    """Stands in for torch.cuda.Stream and torch.Stream. Entering it makes it the current one."""

    device_type = 1  # c10::DeviceType::CUDA
    _numbers = itertools.count(1)

    def __init__(
        self, device: Any = None, priority: int = 0, *, stream_id: int | None = None, **known: Any
    ) -> None:
        self.device = _gpu(known.get("device_index", device)).device
        self.device_index = self.device.index
        self.priority = priority
        self.stream_id = next(self._numbers) if stream_id is None else stream_id
        self._outer: list[tuple[int, Stream]] = []

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    wait_stream = wait_event = synchronize = _nothing

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -3

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: Event | None = None) -> Event:
        event = Event(enable_timing=True) if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        self._outer.append((machine_in_use().current, current_stream(self.device)))
        set_stream(self)
        return self

    def __exit__(self, *error: Any) -> None:
        device, stream = self._outer.pop()
        set_stream(stream)
        machine_in_use().current = device

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.stream_id, self.device) == (
            other.stream_id,
            other.device,
        )

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.stream_id:#x}>"


class Event:
    """Stands in for torch.cuda.Event and torch.Event."""

    def __init__(self, *args: Any, enable_timing: bool = False, **kwargs: Any) -> None:
        self.enable_timing = enable_timing or args[:1] == (True,)  # of torch.Event: a device
        self._seconds: float | None = None

    wait = synchronize = _nothing

    def record(self, stream: Any = None) -> None:
        synchronize()  # a real GPU as backing may still be at work
        self._seconds = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event's `record` to `end_event`'s."""
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._seconds is None or end_event._seconds is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._seconds - self._seconds) * 1e3


def default_stream(device: Any = None) -> Stream:
    return Stream(device, stream_id=0)


def current_stream(device: Any = None) -> Stream:
    """The stream that a GPU works on in this thread."""
    return machine_in_use().streams.get(_gpu(device).index) or default_stream(device)


def set_stream(stream: Stream | None) -> None:
    """Make `stream` the current one of its GPU, and that GPU the current one."""
    if stream is not None:
        machine_in_use().current = stream.device_index
        machine_in_use().streams[stream.device_index] = stream


# Generators


class DefaultGenerators:
    def __getitem__(self, index: int) -> VirtualGenerator:
        return machine_in_use().gpus[index].generator  # type: ignore[no-any-return]  # also forked

    def __len__(self) -> int:
        return len(machine_in_use().gpus)


_Generator = torch.Generator


class _AlsoVirtual(type):
    """Makes the stand-in for torch.Generator recognize every generator."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Generator)

    def __call__(cls, device: Any = "cpu") -> torch.Generator:
        device = named(device)
        if device.type != "cuda":
            return _Generator(device)
        gpu = _gpu(device)
        return VirtualGenerator(gpu.index, gpu.backing)


class Generator(metaclass=_AlsoVirtual):
    """Stands in for `torch.Generator`: makes a virtual GPU's generator where one is asked for."""


_CUDART = SimpleNamespace(cudaProfilerStart=lambda: 0, cudaProfilerStop=lambda: 0)

# What replaces what, in each of the modules that has the name

_BOTH: dict[str, Any] = {
    "current_stream": current_stream,
    "empty_cache": _nothing,
    "memory_stats": memory_stats,
    "reset_accumulated_memory_stats": reset_accumulated_memory_stats,
    "reset_peak_memory_stats": reset_peak_memory_stats,
    "set_stream": set_stream,
    "synchronize": synchronize,
}
_ALLOCATORS = (
    *("caching_allocator_enable", "host_memory_stats", "host_memory_stats_as_nested_dict"),
    *("memory_snapshot", "memory_stats_as_nested_dict", "reset_accumulated_host_memory_stats"),
    "reset_peak_host_memory_stats",
)
_SENSORS = (
    *("clock_rate", "device_memory_used", "list_gpu_processes", "memory_usage", "power_draw"),
    *("temperature", "utilization"),
)
_CUDA: dict[str, Any] = {
    **_BOTH,
    "_initialized": True,
    "_lazy_init": _lazy_init,
    "can_device_access_peer": lambda device, peer_device: True,
    "CUDAGraph": _no_graphs,
    "cudart": lambda: _CUDART,
    "current_device": lambda: machine_in_use().current,
    "default_generators": DefaultGenerators(),
    "default_stream": default_stream,
    "device_count": lambda: len(machine_in_use().gpus),
    "Event": Event,
    "ExternalStream": _no_foreign_streams,
    "get_allocator_backend": lambda: "native",
    "get_device_properties": get_device_properties,
    "get_per_process_memory_fraction": get_per_process_memory_fraction,
    "get_sync_debug_mode": lambda: 0,
    "graph_pool_handle": _no_graphs,
    "ipc_collect": _nothing,
    "is_available": lambda: True,
    "is_current_stream_capturing": lambda: False,
    "mem_get_info": mem_get_info,
    "set_device": set_device,
    "set_per_process_memory_fraction": set_per_process_memory_fraction,
    "set_sync_debug_mode": _nothing,
    "Stream": Stream,
    **dict.fromkeys(_ALLOCATORS, _no_history),
    **dict.fromkeys(_SENSORS, _no_sensor),
}
_HISTORY = dict.fromkeys(("_dump_snapshot", "_record_memory_history", "_snapshot"), _no_history)
# Without a profiler, NVTX answers -2 for a range that it does not track.
_NVTX: dict[str, Any] = {
    "mark": _nothing,
    "range_end": _nothing,
    "range_pop": lambda: -2,
    "range_push": lambda message: -2,
    "range_start": lambda message: 0,
}
_ACCELERATOR: dict[str, Any] = {
    **_BOTH,
    "current_accelerator": lambda check_available=False: torch.device("cuda"),
    "current_device_index": lambda: machine_in_use().current,
    "device_index": torch.cuda.device,
    "empty_host_cache": _nothing,
    "get_memory_info": mem_get_info,
    "set_device_index": set_device,
}
REPLACEMENTS: list[tuple[Any, dict[str, Any]]] = [
    (torch.cuda, _CUDA),
    (torch.cuda.device, {"__enter__": enter_device, "__exit__": leave_device}),
    (torch.cuda.graphs, _CUDA),
    (torch.cuda.memory, _CUDA | _HISTORY),
    (torch.cuda.nvtx, _NVTX),
    (torch.cuda.profiler, {"start": _nothing, "stop": _nothing}),
    (torch.cuda.random, _CUDA),
    (torch.accelerator, _ACCELERATOR),
    (torch.accelerator.memory, _ACCELERATOR),
    (torch, {"Event": Event, "Generator": Generator, "Stream": Stream}),
    (torch._C, {"_get_accelerator": lambda check=None: torch.device("cuda")}),
    (torch.backends.cudnn, {"is_acceptable": lambda tensor: False, "is_available": lambda: True}),
    # The versions: programs, and DistributedDataParallel, ask whether they are new enough for
    # bfloat16 (11 and 2.10).
    (torch.backends.cudnn, {"version": lambda: 91002}),
    (torch.version, {"cuda": "12.8"}),
    (torch.cuda.nccl, {"is_available": lambda tensors: False, "version": lambda: (2, 27, 3)}),
    (torch.nn.parallel._functions, {"_streams": None}),
]
