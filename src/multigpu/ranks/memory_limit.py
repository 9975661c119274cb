"""The memory of a rank's tensors: a limit, and the peak.

Without a GPU each rank simulates one with ``limit`` bytes: every storage that an operator returns
is counted as long as it exists, once for all its views, with its current size, because FSDP frees a
storage by making it empty. With a GPU, PyTorch's own allocator counts.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass,
)

from multigpu.devices.errors import out_of_memory
from multigpu.devices.meters import Memory, MemoryMeter
from multigpu.devices.threads import around_new_threads
from multigpu.ranks.backend import rank_device
from multigpu.ranks.frames import Write
from multigpu.ranks.traced_group import tensors_in

PLAIN = (torch.Tensor, torch.nn.Parameter)
METERS: list[MemoryMeter] = []  # of the limits that this process is in, the outermost first


@contextlib.contextmanager
def limited_memory(limit: int, *, rank: int) -> Iterator[Callable[[], int]]:
    """Raise torch.OutOfMemoryError in the block when tensors need more than ``limit`` bytes.

    Yields a function that returns the peak so far, in bytes.
    """
    device = rank_device()
    if device.type == "cuda":
        total = torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
        torch.cuda.reset_peak_memory_stats(device)
        yield lambda: torch.cuda.max_memory_allocated(device)
        return
    meter = MemoryMeter(limit, functools.partial(out_of_memory, rank))
    METERS.append(meter)
    try:
        with counting(meter):
            yield lambda: meter.read().peak
    finally:
        METERS.remove(meter)


@contextlib.contextmanager
def memory_within(limit: int | None, rank: int, write: Write) -> Iterator[None]:
    """Limit a rank's tensors and report their peak; None: neither."""
    if limit is None:
        yield
        return
    with limited_memory(limit, rank=rank) as peak:
        try:
            yield
        finally:
            write({"phase": "memory", "peak": peak()})


@contextlib.contextmanager
def counting(meter: MemoryMeter) -> Iterator[None]:
    """Count what the block's operators return on the CPU, in backward and in new threads, too."""
    with (
        Metering(meter),
        around_new_threads(lambda _: Metering(meter)),  # modes belong to one thread
        resizes_seen_by(meter),
    ):
        yield


def rank_memory(*, reset_peak: bool = False) -> Memory:
    """The bytes of this rank's tensors now, their peak, and the limit.

    `reset_peak`: the peak is counted again from here. Raises RuntimeError on the CPU if memory is
    not counted: outside of `run_ranks(..., memory="8 GiB")`.
    """
    device = rank_device()
    if device.type == "cuda":
        if reset_peak:
            torch.cuda.reset_peak_memory_stats(device)
        return Memory(
            torch.cuda.memory_allocated(device),
            torch.cuda.max_memory_allocated(device),
            torch.cuda.mem_get_info(device)[1],
        )
    if not METERS:
        raise RuntimeError(
            'the memory of this rank is not counted. Pass a limit: run_ranks(..., memory="8 GiB")'
        )
    if reset_peak:
        METERS[0].reset_peak()
    return METERS[0].read()


class Metering(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what every operator of this thread returns."""

    def __init__(self, meter: MemoryMeter) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.meter = meter

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(kind not in PLAIN and kind is not FakeTensor for kind in types):
            return NotImplemented  # a DTensor, say: its parts come here by themselves
        result = func(*args, **(kwargs or {}))
        if func.namespace == "c10d":  # it has filled what it was given
            return result
        for tensor in tensors_in(result):
            # A stand-in for other tensors, or for none, has no memory of its own here.
            if isinstance(tensor, FakeTensor) or is_traceable_wrapper_subclass(tensor):
                continue
            if tensor.device.type == "cpu" and tensor.layout == torch.strided:
                self.meter.hold(tensor.untyped_storage())
        return result


@contextlib.contextmanager
def resizes_seen_by(meter: MemoryMeter) -> Iterator[None]:
    """Count storages that are resized in the block, because no mode sees a resize."""
    resize = torch.UntypedStorage.resize_

    def resize_(storage: Any, size: int) -> Any:
        if storage.device.type == "cpu":
            meter.hold(storage, int(size))
        return resize(storage, size)

    torch.UntypedStorage.resize_ = resize_  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
