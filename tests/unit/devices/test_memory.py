"""The memory meter: live storages, to the byte."""

import gc

import pytest
import torch
from torch import nn

from multigpu import virtual_gpus
from multigpu.devices.meters import Memory, parse_bytes

KIB, MIB, GIB = 2**10, 2**20, 2**30


def allocated(machine, index: int = 1) -> int:
    return machine.memory(index).allocated


def test_memory_rises_with_tensors_and_falls_when_they_go(machine):
    assert machine.memory(1) == Memory(allocated=0, peak=0, limit=GIB)
    x = torch.zeros(1000, device="cuda:1")
    y = torch.zeros(500, dtype=torch.float64, device="cuda:1")
    assert machine.memory(1) == Memory(8000, 8000, GIB)
    del x
    assert machine.memory(1) == Memory(4000, 8000, GIB)
    assert machine.memory(0) == machine.memory(2) == Memory(0, 0, GIB)
    del y
    assert allocated(machine) == 0


def test_views_share_one_storage(machine):
    x = torch.zeros(1000, device="cuda:1")
    views = [x.view(10, 100), x[5:], x.t(), x.detach(), x.data, x.expand(3, 1000)]
    assert allocated(machine) == 4000
    del x
    assert allocated(machine) == 4000
    views.clear()
    assert allocated(machine) == 0


def test_what_a_tensor_has_now_counts(machine):
    x = torch.zeros(10, device="cuda:1")
    x.resize_(100)
    assert allocated(machine) == 400
    x.untyped_storage().resize_(0)
    assert allocated(machine) == 0
    x.set_(torch.zeros(7, device="cuda:1"))
    assert allocated(machine) == 28
    del x
    parameter = nn.Parameter(torch.zeros(10, device="cuda:1"))
    parameter.data = torch.zeros(3, device="cuda:1")
    assert allocated(machine) == 12
    parameter.data = torch.zeros(3, device="cuda:2")
    assert (allocated(machine, 1), allocated(machine, 2)) == (0, 12)


def test_what_the_graph_keeps_counts_until_backward(machine):
    x = torch.ones(1000, device="cuda:1", requires_grad=True)
    y = (x * 2).exp().sum()  # exp keeps its result
    assert allocated(machine) == 4000 + 4000 + 4
    y.backward()
    assert allocated(machine) == 4000 + 4 + 4000  # x, y and x.grad
    x.grad = None
    del y
    gc.collect()
    assert allocated(machine) == 4000


def test_torch_cuda_tells_the_same(machine):
    x = torch.zeros(1000, device="cuda:1")
    torch.zeros(1000, device="cuda:1")
    assert torch.cuda.memory_allocated(1) == allocated(machine) == 4000
    assert torch.cuda.max_memory_allocated("cuda:1") == machine.memory(1).peak == 8000
    assert torch.cuda.memory_reserved(1) == 4000
    assert torch.cuda.memory_stats(1)["allocated_bytes.all.peak"] == 8000
    assert torch.accelerator.memory_allocated(1) == 4000
    torch.cuda.reset_peak_memory_stats(1)
    assert torch.cuda.max_memory_allocated(1) == machine.memory(1).peak == 4000
    assert "Allocated memory" in torch.cuda.memory_summary(1)
    with torch.cuda.device(1):
        assert torch.cuda.memory_allocated() == 4000
    assert torch.cuda.get_device_properties(1).total_memory == GIB
    assert x.sum().item() == 0


def test_going_over_the_limit_raises_cudas_error_and_changes_nothing():
    with virtual_gpus(2, memory="8 MiB") as machine:
        kept = torch.zeros(MIB, device="cuda:1")  # 4 MiB
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(10**15, device="cuda:1")  # larger than this computer
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.zeros(2 * MIB, device="cuda:1")
        assert str(caught.value).startswith(
            "CUDA out of memory. Tried to allocate 8.00 MiB. GPU 1 has a total capacity of "
            "8.00 MiB of which 4.00 MiB is free. "
        )
        asks = (
            (torch.cat, ([kept, kept],)),
            (torch.Tensor.cuda, (torch.ones(2 * MIB), 1)),
            (torch.Tensor.repeat, (kept, 2)),
            (torch.full_like, (kept.expand(2, MIB), 1.0)),
        )
        for function, arguments in asks:
            with torch.cuda.device(1), pytest.raises(torch.OutOfMemoryError):
                function(*arguments)
        assert machine.memory(1) == Memory(4 * MIB, 4 * MIB, 8 * MIB)
        del kept, asks, arguments
        torch.zeros(2 * MIB, device="cuda:1")  # exactly full


@pytest.mark.parametrize(
    ("text", "size"),
    [("8 GiB", 8 * GIB), ("512MiB", 512 * MIB), ("1.5 KB", 1500), (4096, 4096)],
)
def test_sizes_are_read(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["8 gigs", "-1", "GiB", 0])
def test_sizes_that_make_no_sense_are_named(text):
    with pytest.raises(ValueError, match="memory="):
        virtual_gpus(2, memory=text)


def test_a_process_may_be_allowed_a_part_of_the_memory():
    with virtual_gpus(2, memory="1 MiB"):
        torch.cuda.set_per_process_memory_fraction(0.5, 1)
        torch.ones(2**17 + 1, device="cuda:0")
        with pytest.raises(torch.OutOfMemoryError, match=r"of 1024.00 KiB .* 512.00 KiB allowed"):
            torch.ones(2**17 + 1, device="cuda:1")
        with pytest.raises(ValueError, match="Invalid fraction value: 2"):
            torch.cuda.set_per_process_memory_fraction(2.0)
