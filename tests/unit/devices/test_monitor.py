"""What each GPU is doing, from nvitop or from the meters."""

import re

import torch
from nvitop.api import NA, CudaDevice

from multigpu.devices.monitor import GpuStatus, one_line, snapshot


def told(status):
    """The parts of a status on one line."""
    return re.split(" · | of ", one_line(status))


def test_virtual_gpus_report_from_their_meters(machine):
    kept = torch.zeros(1000, device="cuda:1")
    statuses = snapshot()
    assert [status.index for status in statuses] == [0, 1, 2]
    assert [status.memory_used for status in statuses] == [0, kept.nbytes, 0]
    assert statuses[1].memory_total == machine.memory(1).limit
    assert told(statuses[1]) == ["GPU 1", "virtual GPU", "4,000 B", "1.0 GiB", "1 process"]
    assert told(statuses[0]) == ["GPU 0", "virtual GPU", "0 B", "1.0 GiB", "0 processes"]


class Pretended:
    """An nvitop CudaDevice as far as it is asked."""

    cuda_index, physical_index = 1, 3  # with CUDA_VISIBLE_DEVICES=0,3
    name = staticmethod(lambda: "NVIDIA H100 80GB HBM3")
    gpu_utilization = staticmethod(lambda: 37)
    memory_used = staticmethod(lambda: 5 * 2**30)
    memory_total = staticmethod(lambda: 80 * 2**30)
    temperature = staticmethod(lambda: NA)
    power_usage = staticmethod(lambda: 210_400)
    processes = staticmethod(lambda: {11: None, 12: None})


def test_real_gpus_report_through_nvitop(monkeypatch):
    monkeypatch.setattr(CudaDevice, "all", classmethod(lambda cls: [Pretended()]))
    (status,) = snapshot()
    assert status == GpuStatus(
        index=1,
        name="NVIDIA H100 80GB HBM3",
        utilization=37,
        memory_used=5 * 2**30,
        memory_total=80 * 2**30,
        temperature=None,
        power=210.4,
        processes=(11, 12),
    )
    name, *numbers = told(status)[1:]
    assert name == Pretended.name()
    assert numbers == ["37 % busy", "5.0 GiB", "80.0 GiB", "210 W", "2 processes"]
