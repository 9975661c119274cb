"""Three virtual GPUs for every test that asks for `machine`."""

from collections.abc import Iterator

import pytest
import torch

from multigpu import virtual_gpus
from multigpu.devices.machine import VirtualMachine

CUDA_0, CUDA_1, CUDA_2 = (torch.device("cuda", index) for index in range(3))
CPU = torch.device("cpu")


@pytest.fixture
def machine() -> Iterator[VirtualMachine]:
    with virtual_gpus(3, memory="1 GiB") as machine:
        yield machine
