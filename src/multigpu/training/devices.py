"""What a training loop has to know about a device, and what it has to wait for."""

import torch

from multigpu.devices import current_machine
from multigpu.ranks.rank import rank_device
from multigpu.training.launch import Launch


def device_of(launch: Launch) -> torch.device:
    """The GPU of this rank, or the CPU. Where GPUs are fewer than ranks, ranks share them.

    A group that was there already may have no LOCAL_RANK; then `launch` counts on one machine.
    """
    return rank_device(launch.local_rank)


def has_real_gpu(device: torch.device) -> bool:
    """Whether `device` is a GPU that fetches rows from the computer's memory by itself."""
    return device.type == "cuda" and not current_machine().is_virtual


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done what it was given: a kernel's start is not its end."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
