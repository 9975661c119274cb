"""Meeting the other ranks: the process group of a run that torchrun started."""

from __future__ import annotations

import atexit

import torch
from torch import distributed as dist

from multigpu.ranks.backend import Backend, choose_backend, rank_device
from multigpu.training.launch import Launch
from multigpu.training.meeting import meeting_store


def join_group(launch: Launch, asked: str | None) -> Backend:
    """Join the process group, unless this process is in one; says which backend it has.

    Raises ValueError where NCCL is asked for and this machine has fewer GPUs than ranks.
    """
    gpus = torch.cuda.device_count()
    backend = choose_backend(launch.local_world_size, asked=asked, gpus=gpus)
    if dist.is_initialized():
        return Backend(dist.get_backend(), gpus, launch.local_world_size)
    device = rank_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)  # NCCL and bare .cuda() use the current device
    store, rank, world_size = meeting_store()
    dist.init_process_group(backend.name, store=store, rank=rank, world_size=world_size)
    atexit.register(leave_group)
    return backend


def leave_group() -> None:
    """Leave in good order: NCCL complains at the end of a process that did not."""
    if dist.is_initialized():
        dist.destroy_process_group()
