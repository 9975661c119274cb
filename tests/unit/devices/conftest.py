"""Three virtual GPUs for every test that asks for `machine`."""

from collections.abc import Iterator

import pytest

from multigpu import virtual_gpus
from multigpu.devices.machine import VirtualMachine


@pytest.fixture
def machine() -> Iterator[VirtualMachine]:
    with virtual_gpus(3, memory="1 GiB") as machine:
        yield machine
