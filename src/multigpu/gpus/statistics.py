"""The memory meter in the form in which CUDA's allocator reports (torch.cuda.memory_stats)."""

from __future__ import annotations

from typing import Any

from multigpu.gpus.devices import gpu_at

_KINDS = ("current", "peak", "allocated", "freed")
_POOLS = ("all", "large_pool", "small_pool")
_IN_USE = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
_UNKNOWN = ("allocation", "segment", "active", "inactive_split", "inactive_split_bytes")
_COUNTERS = (
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
    "max_split_size",
)


def allocator_statistics(index: int) -> dict[str, Any]:
    """What the meter knows of GPU `index`; the rest is 0. There is no cache and only one pool."""
    memory = gpu_at(index).meter.read()
    zeros = dict.fromkeys(_KINDS, 0)
    in_use = {**zeros, "current": memory.allocated, "peak": memory.peak}
    statistics: dict[str, Any] = {name: {pool: dict(zeros) for pool in _POOLS} for name in _UNKNOWN}
    for name in _IN_USE:
        statistics[name] = {pool: dict(in_use if pool == "all" else zeros) for pool in _POOLS}
    for name in ("oversize_allocations", "oversize_segments"):
        statistics[name] = dict(zeros)
    return {**statistics, **dict.fromkeys(_COUNTERS, 0)}
