"""Where a rank computes and how it communicates: its device, its backend, its group."""

import os
import socket
import sys
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
    virtual: bool = False

    def __str__(self) -> str:
        if self.virtual:
            return f"{self.name} on {counted(self.gpus, 'virtual GPU')}"
        if not self.gpus:
            return f"{self.name} on the CPU"
        if self.gpus >= self.world_size:
            return f"{self.name} on {counted(self.world_size, 'GPU')}"
        return f"{self.name}, {self.world_size} ranks share {counted(self.gpus, 'GPU')}"


def choose_backend(
    world_size: int, *, asked: str | None, gpus: int, virtual: bool = False
) -> Backend:
    """NCCL if every rank has its own GPU, real or virtual, else gloo.  Raises ValueError."""
    if virtual:
        return Backend(asked or "nccl", world_size, world_size, virtual=True)
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


def free_port() -> int:
    """A port of this machine at which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def become_rank(
    rank: int,
    world_size: int,
    *,
    trace: bool,
    write: Write,
    port: int,
    takes_gpu: bool = True,
) -> None:
    """Make this process a rank: torchrun's variables, its GPU, and a record of its calls.

    ``takes_gpu=False``: as under torchrun, GPU 0 is the current one until the program sets another.
    ``port``: for what meets at one; the group itself meets in a file.
    """
    import torch

    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "multigpu",
        "GLOO_SOCKET_IFNAME": LOOPBACK,  # where gloo and NCCL find the others
        "NCCL_SOCKET_IFNAME": LOOPBACK,
    }
    device = rank_device()
    if device.type == "cuda" and takes_gpu:
        torch.cuda.set_device(device)
    if trace:
        from multigpu.ranks.traced_group import start_recording

        start_recording(write)
