"""What each GPU is doing: one status per GPU, from nvitop, or from the meters of virtual GPUs::

    from multigpu.devices.monitor import one_line, snapshot
    for status in snapshot():
        print(one_line(status))

Needs no torch. Without NVIDIA's management library no GPU is reported, and nothing is printed about
that.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

from multigpu.pictures.units import human_bytes


@dataclass(frozen=True)
class GpuStatus:
    """One GPU at one moment. None stands for what cannot be known."""

    index: int
    name: str
    utilization: int | None  # percent of the last sampling period in which a kernel ran
    memory_used: int | None  # bytes, of all processes
    memory_total: int | None  # bytes
    temperature: int | None  # degrees Celsius
    power: float | None  # watts
    processes: tuple[int, ...]  # ids of the processes that use it


def snapshot() -> list[GpuStatus]:
    """The GPUs that torch sees now: virtual ones while they are on, else the real ones."""
    gpu = sys.modules.get("multigpu.devices.gpu")  # which needs torch, and this does not
    machine = gpu.virtual_machine() if gpu else None
    if machine is None:
        return [_real(device) for device in _nvidia_devices()]
    return [
        GpuStatus(
            index=gpu.index,
            name="virtual GPU",
            utilization=None,
            memory_used=gpu.meter.allocated,
            memory_total=gpu.meter.limit,
            temperature=None,
            power=None,
            processes=(os.getpid(),) if gpu.meter.allocated else (),
        )
        for gpu in machine.gpus
    ]


def one_line(status: GpuStatus) -> str:
    """`status` on one line, without unknown values."""
    parts = [f"GPU {status.index}", status.name]
    if status.utilization is not None:
        parts.append(f"{status.utilization} % busy")
    if status.memory_used is not None and status.memory_total is not None:
        parts.append(f"{human_bytes(status.memory_used)} of {human_bytes(status.memory_total)}")
    if status.temperature is not None:
        parts.append(f"{status.temperature} °C")
    if status.power is not None:
        parts.append(f"{status.power:.0f} W")
    count = len(status.processes)
    parts.append(f"{count} process" if count == 1 else f"{count} processes")
    return " · ".join(parts)


def _nvidia_devices() -> list[Any]:
    from nvitop.api import CudaDevice, libnvml

    # It would report a "FATAL ERROR" where there is no NVIDIA driver.
    logger = libnvml.LOGGER
    disabled, logger.disabled = logger.disabled, True
    try:
        return list(CudaDevice.all())  # those of CUDA_VISIBLE_DEVICES, in its order
    finally:
        logger.disabled = disabled


def _real(device: Any) -> GpuStatus:
    """The status of an nvitop CudaDevice, which reports NA for values that the driver lacks."""
    milliwatts = _number(device.power_usage())
    return GpuStatus(
        index=device.cuda_index,
        name=str(device.name()),
        utilization=_number(device.gpu_utilization()),
        memory_used=_number(device.memory_used()),
        memory_total=_number(device.memory_total()),
        temperature=_number(device.temperature()),
        power=None if milliwatts is None else milliwatts / 1000,
        processes=tuple(device.processes()),
    )


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None
