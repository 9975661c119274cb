"""The same on real GPUs: virtual ones backed by one GPU, and the meters of the real machine."""

import pytest
import torch
from torch import nn

from multigpu import gpus, virtual_gpus
from multigpu.devices import copy_to, current_machine
from multigpu.devices.meters import Copy


@pytest.mark.gpu
def test_virtual_gpus_can_lie_on_one_real_gpu():
    before = in_use()
    with virtual_gpus(3, memory="1 GiB", backing="cuda:0") as machine:
        x = torch.randn(12, 5)
        model = nn.DataParallel(
            nn.Sequential(nn.Linear(5, 8), nn.Dropout(), nn.Linear(8, 2)).cuda()
        )
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        weight = model.module[0].weight
        assert weight._data.device == torch.device("cuda:0")
        assert str(weight.device) == "cuda:0"
        assert torch.zeros(1, device="cuda:2")._data.is_cuda
        assert machine.memory(0).allocated > 0
        assert ("cuda:0", "cuda:2") in machine.traffic.by_link()
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            torch.ones(2, device="cuda:1") + torch.ones(2, device="cuda:2")
        torch.manual_seed(1)
        drawn = torch.rand(3, device="cuda:1")
        torch.manual_seed(1)
        assert torch.equal(torch.rand(3, device="cuda:1"), drawn)
        torch.cuda.synchronize()
        sequence = torch.randn(4, 2, 5, device="cuda:1", requires_grad=True)
        for layer in (nn.LSTM(5, 3), nn.TransformerEncoderLayer(5, 1, 8), nn.Conv1d(2, 3, 2)):
            output = layer.cuda(1)(sequence)
            (output[0] if isinstance(output, tuple) else output).sum().backward()
            assert all(p.grad.device == sequence.device for p in layer.parameters())
    del model, optimizer, weight, drawn, sequence, layer, output
    assert in_use() == before


def in_use():
    """Bytes of tensors on the real GPU; workspaces of cuBLAS are kept, and count as well."""
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated(0)


@pytest.mark.gpu
def test_the_real_machine_meters_copy_to_and_pytorchs_memory():
    (device,) = gpus(1)
    machine = current_machine()
    assert machine.is_virtual is False
    machine.traffic.clear()
    x = copy_to(torch.ones(1000, requires_grad=True), device)
    torch.ones(1000).to(device)  # not seen
    assert list(machine.traffic) == [Copy("cpu", "cuda:0", 4000)]
    memory = machine.memory(0)
    assert x.nbytes <= memory.allocated <= memory.peak <= memory.limit


@pytest.mark.multi_gpu
def test_copies_between_real_gpus_are_metered():
    first, second = gpus(2)
    machine = current_machine()
    machine.traffic.clear()
    copy_to(copy_to(torch.ones(10), first), second)
    assert machine.traffic.by_link() == {("cpu", "cuda:0"): 40, ("cuda:0", "cuda:1"): 40}
