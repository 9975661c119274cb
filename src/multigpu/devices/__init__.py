"""The GPUs of this machine: real ones, or virtual ones that behave like them.

    from multigpu import gpus, virtual_gpus
    devices = gpus(4)                      # real if there are four, else virtual from now on
    with virtual_gpus(4) as machine:       # virtual, until the end of the block
        ...
        machine.traffic.by_link()

Torch is imported when one of these functions is called, not before.

To read how virtual GPUs work, begin with gpu.py (a GPU and its two names) and tensor.py (a tensor
on it). Every call comes through gate.py: functions of torch go on to functions.py where they need
more than another device, operators to dispatch.py. torch_cuda.py and comm.py are what torch's own
modules are given, and machine.py puts it there. The meters are in meters.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from multigpu.devices.machine import VirtualMachine

__all__ = ["copy_to", "current_machine", "gpus", "virtual_gpus"]


def virtual_gpus(
    count: int, *, memory: int | str = "16 GiB", backing: str = "cpu"
) -> VirtualMachine:
    """`count` virtual GPUs of `memory` bytes each, for the length of a `with` block.

    `backing` is where their data really lie: "cpu", or one real GPU such as "cuda:0".
    """
    from multigpu.devices.machine import VirtualMachine

    return VirtualMachine(count, memory=memory, backing=backing)


def gpus(count: int) -> list[torch.device]:
    """`count` GPUs: this machine's if it has as many, else virtual ones from now on."""
    from multigpu.devices import machine

    return machine.gpus(count)


def current_machine() -> Any:
    """The machine whose GPUs torch sees now: the innermost virtual one, else the real one."""
    from multigpu.devices import machine

    return machine.current_machine()


def copy_to(tensor: torch.Tensor, device: Any) -> torch.Tensor:
    """`tensor.to(device)`, also counted by the traffic meter on real GPUs."""
    from multigpu.devices import machine

    return machine.copy_to(tensor, device)
