"""Streams and events of virtual GPUs.

A virtual GPU finishes each operator before the call returns, so every stream is always idle, every
wait is over at once and every event has happened. Events still measure time between `record`s.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import torch

from multigpu.gpus import active
from multigpu.gpus.devices import gpu_at, named

_CUDA_DEVICE_TYPE = 1  # c10::DeviceType::CUDA


class Stream:
    """Stands in for torch.cuda.Stream and torch.Stream. Entering it makes it the current one."""

    device_type = _CUDA_DEVICE_TYPE
    _numbers = itertools.count(1)

    def __init__(self, device: Any = None, priority: int = 0, **known: Any) -> None:
        machine = active.machine_in_use()
        named_device = None if device is None else named(device)
        index = known.get("device_index", named_device.index if named_device is not None else None)
        self.device_index = gpu_at(machine.current if index is None else index).index
        self.device = torch.device("cuda", self.device_index)
        self.priority = priority
        number = known.get("stream_id")
        self.stream_id: int = next(self._numbers) if number is None else number
        self._outer: list[tuple[int, Stream]] = []

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    def wait_stream(self, stream: Any) -> None:
        """Nothing to wait for."""

    def wait_event(self, event: Any) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: Event | None = None) -> Event:
        event = Event(enable_timing=True) if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        device = active.machine_in_use().current
        self._outer.append((device, current_stream(self.device_index)))
        set_stream(self)
        return self

    def __exit__(self, *error: Any) -> None:
        device, stream = self._outer.pop()
        set_stream(stream)
        active.machine_in_use().current = device

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.stream_id, self.device) == (
            other.stream_id,
            other.device,
        )

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.stream_id:#x}>"


class ExternalStream(Stream):
    """Stands in for torch.cuda.ExternalStream."""

    def __init__(self, stream_ptr: int, device: Any = None, **known: Any) -> None:
        super().__init__(device, stream_id=stream_ptr)


class Event:
    """Stands in for torch.cuda.Event and torch.Event."""

    def __init__(self, *args: Any, enable_timing: bool = False, **kwargs: Any) -> None:
        self.enable_timing = enable_timing
        self._seconds: float | None = None

    def record(self, stream: Any = None) -> None:
        torch.cuda.synchronize()  # a real GPU as backing may still be at work
        self._seconds = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event's `record` to `end_event`'s."""
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._seconds is None or end_event._seconds is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._seconds - self._seconds) * 1e3


class _Current(threading.local):
    """The current stream of each GPU, per thread."""

    def __init__(self) -> None:
        self.streams: dict[tuple[int, int], Stream] = {}


_current = _Current()


def default_stream(index: int) -> Stream:
    """Stream 0 of GPU `index`."""
    return Stream(device_index=index, stream_id=0)


def current_stream(index: int) -> Stream:
    """The stream that GPU `index` works on in this thread."""
    machine = active.machine_in_use()
    return _current.streams.get((id(machine), index)) or default_stream(index)


def set_stream(stream: Stream) -> None:
    """Make `stream` the current one of its GPU, and that GPU the current one."""
    machine = active.machine_in_use()
    machine.current = stream.device_index
    _current.streams[id(machine), stream.device_index] = stream
