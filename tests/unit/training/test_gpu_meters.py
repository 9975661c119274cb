"""What the GPUs do, as figures of the history."""

import pytest
import torch
from nvitop.api import NA, Device

from multigpu import virtual_gpus
from multigpu.training.history import gpu_figures


class Pretended:
    """An nvitop Device as far as it is asked."""

    name = staticmethod(lambda: "NVIDIA H100 80GB HBM3")
    memory_total = staticmethod(lambda: 80 * 2**30)
    temperature = staticmethod(lambda: 50)
    power_usage = staticmethod(lambda: 210_400)
    processes = staticmethod(dict)

    def __init__(self, index, memory, busy):
        self.physical_index = index
        self.memory_used = lambda: memory
        self.gpu_utilization = lambda: busy


def test_each_gpu_tells_its_memory_and_how_busy_it_is(monkeypatch):
    devices = [Pretended(0, 5 * 2**30, 37), Pretended(2, NA, 100)]
    monkeypatch.setattr(Device, "all", classmethod(lambda cls: devices))
    assert gpu_figures() == {"gpu0_gib": 5.0, "gpu0_busy": 37, "gpu2_busy": 100}


def test_virtual_gpus_tell_their_memory():
    with virtual_gpus(2):
        kept = torch.zeros(2**18, device="cuda:1")  # 1 MiB
        assert gpu_figures() == {"gpu0_gib": 0.0, "gpu1_gib": 1 / 1024}
        del kept


def test_without_a_gpu_there_are_no_figures(monkeypatch):
    monkeypatch.setattr(Device, "all", classmethod(lambda cls: []))
    assert gpu_figures() == {}


@pytest.mark.gpu
def test_a_real_gpu_tells_both():
    assert {"gpu0_gib", "gpu0_busy"} <= set(gpu_figures())
