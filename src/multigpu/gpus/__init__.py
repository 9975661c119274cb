"""The GPUs of this machine: real ones, or virtual ones that behave like them.

    from multigpu import gpus, virtual_gpus
    devices = gpus(4)                      # real if there are four, else virtual from now on
    with virtual_gpus(4) as machine:       # virtual, until the end of the block
        ...
        machine.traffic.by_link()

Torch is imported when one of these functions is called, not before.

To read how virtual GPUs work, begin with gpu.py (a GPU and its two names) and tensor.py (a tensor
on it); then operators.py and placement.py (what happens below autograd), calls.py and moves.py
(what happens above it), torch_cuda.py and comm.py (what torch's own modules are given), and
switching.py. The meters are traffic.py, memory.py and copies.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from multigpu.gpus.machine import VirtualMachine

__all__ = ["copy_to", "current_machine", "gpus", "virtual_gpus"]


def virtual_gpus(
    count: int, *, memory: int | str = "16 GiB", backing: str = "cpu"
) -> VirtualMachine:
    """`count` virtual GPUs of `memory` bytes each, for the length of a `with` block.

    `backing` is where their data really lie: "cpu", or one real GPU such as "cuda:0".
    """
    from multigpu.gpus.machine import VirtualMachine

    return VirtualMachine(count, memory=memory, backing=backing)


def gpus(count: int) -> list[torch.device]:
    """`count` GPUs: this machine's if it has as many, else virtual ones from now on."""
    from multigpu.gpus import choosing

    return choosing.gpus(count)


def current_machine() -> Any:
    """The machine whose GPUs torch sees now: the innermost virtual one, else the real one."""
    from multigpu.gpus import choosing

    return choosing.current_machine()


def copy_to(tensor: torch.Tensor, device: Any) -> torch.Tensor:
    """`tensor.to(device)`, also counted by the traffic meter on real GPUs."""
    from multigpu.gpus import choosing

    return choosing.copy_to(tensor, device)
