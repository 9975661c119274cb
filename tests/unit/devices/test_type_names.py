"""`tensor.type()` names the GPU's type once, wherever the data really are."""

import torch

from multigpu.devices.tensor import VirtualTensor


def test_the_name_does_not_depend_on_the_backing(machine):
    assert torch.ones(2, device="cuda:1").type() == "torch.cuda.FloatTensor"
    assert torch.ones(2).type() == "torch.FloatTensor"
    elsewhere = torch.empty(2, dtype=torch.int64, device="meta")  # as unlike the CPU as a real GPU
    assert VirtualTensor(elsewhere, machine.gpus[0]).type() == "torch.cuda.LongTensor"
    sparse = torch.eye(2).to_sparse().to("cuda:1")
    assert sparse.type() == "torch.cuda.sparse.FloatTensor"
