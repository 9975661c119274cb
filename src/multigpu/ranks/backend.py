"""Where a rank computes and how it communicates: its device, its backend, its group."""

import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from multigpu.ranks.errors import counted
from multigpu.ranks.frames import Write

if TYPE_CHECKING:
    import torch


NAMES = ("gloo", "nccl")
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@dataclass(frozen=True)
class Backend:
    """The backend of a run, and how many GPUs its ranks have."""

    name: str
    gpus: int
    world_size: int

    def __str__(self) -> str:
        if not self.gpus:
            return f"{self.name} on the CPU"
        if self.gpus >= self.world_size:
            return f"{self.name} on {counted(self.world_size, 'GPU')}"
        return f"{self.name}, {self.world_size} ranks share {counted(self.gpus, 'GPU')}"


def choose_backend(world_size: int, *, asked: str | None, gpus: int) -> Backend:
    """NCCL if every rank has its own GPU, else gloo.  Raises ValueError."""
    if asked == "nccl" and gpus < world_size:
        raise ValueError(
            f'backend="nccl": NCCL needs a GPU for each of the {world_size} ranks; this machine '
            f"has {gpus}. Leave `backend` out to use gloo."
        )
    return Backend(asked or ("nccl" if gpus >= world_size else "gloo"), gpus, world_size)


def rank_device(local_rank: int | None = None) -> "torch.device":
    """The device of this rank: ``cuda:i`` if there are GPUs, else the CPU.

    If there are fewer GPUs than ranks on this machine, the ranks share them. It also works under
    torchrun: without ``local_rank``, the variable LOCAL_RANK is used.
    """
    import torch

    gpus = torch.cuda.device_count()
    if not gpus:
        return torch.device("cpu")
    if local_rank is None:
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", local_rank % gpus)


def join_group(
    rank: int, world_size: int, *, store: str, backend: str, trace: bool, write: Write
) -> None:
    """Meet the other ranks in the file ``store``; torch.distributed is ready afterwards.

    No address and no port is needed, so any number of runs can go on at the same time.
    """
    import torch
    import torch.distributed as dist

    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GLOO_SOCKET_IFNAME": LOOPBACK,
        "NCCL_SOCKET_IFNAME": LOOPBACK,
    }
    device = rank_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if trace:
        from multigpu.ranks.tracing import start_recording

        start_recording(write)
    rendezvous = dist.FileStore(store, world_size)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=rendezvous, rank=rank, world_size=world_size)
    write({"phase": "joined_group", "time": time.monotonic()})
