"""What torch.cuda.get_device_properties tells about a virtual GPU."""

from __future__ import annotations

from dataclasses import dataclass

from multigpu.gpus.devices import gpu_at


@dataclass(frozen=True)
class DeviceProperties:
    """The memory is the GPU's own; the rest is what an A100 says, for code that asks."""

    name: str
    total_memory: int
    major: int = 8
    minor: int = 0
    multi_processor_count: int = 108
    is_integrated: bool = False
    is_multi_gpu_board: bool = False
    warp_size: int = 32
    max_threads_per_multi_processor: int = 2048
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    shared_memory_per_multiprocessor: int = 167936
    L2_cache_size: int = 40 * 2**20
    gcnArchName: str = ""


def properties_of(index: int) -> DeviceProperties:
    """The properties of GPU `index`."""
    return DeviceProperties("Virtual GPU", gpu_at(index).meter.limit)
