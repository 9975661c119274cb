"""Meeting the other ranks: the process group of a run that torchrun started."""

from __future__ import annotations

import atexit
import gc
import socket
import sys

import torch
from torch import distributed as dist
from torch.distributed.distributed_c10d import Store

from multigpu.ranks.rank import Backend
from multigpu.training.devices import device_of
from multigpu.training.gloo_threads import let_gloo_finish
from multigpu.training.launch import Launch
from multigpu.training.meeting import meeting_store


def join_group(launch: Launch, asked: str | None) -> Backend:
    """Join the process group, unless this process is in one; says which backend it has.

    Raises ValueError where the group that is there has another backend, and on every rank where
    NCCL is asked for and not every rank has a GPU of its own.
    """
    ranks, device = launch.local_world_size, device_of(launch)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # NCCL and bare .cuda() use the current device
    if dist.is_initialized():
        there = dist.get_backend()
        if asked not in (None, there):
            raise ValueError(
                f"backend={asked!r}, but this process is in a process group of {there} already. "
                "Leave backend out, or make the group with it."
            )
        atexit.unregister(let_gloo_finish)
        atexit.register(let_gloo_finish)  # to leave that group is its maker's
        return Backend(there, torch.cuda.device_count(), ranks)
    store, rank, world_size = meeting_store()
    mine = gpu_of_this_rank(device)
    backend = chosen_by_all(store, rank, world_size, asked=asked, mine=mine, ranks=ranks)
    dist.init_process_group(backend.name, store=store, rank=rank, world_size=world_size)
    atexit.register(leave_unless_failed)
    return backend


def gpu_of_this_rank(device: torch.device) -> tuple[str, str]:
    """This machine, and which GPU of it this rank uses: "" where it is none."""
    if device.type == "cpu":
        return socket.gethostname(), ""
    return socket.gethostname(), str(torch.cuda.get_device_properties(device).uuid)


def chosen_by_all(
    store: Store,
    rank: int,
    world_size: int,
    *,
    asked: str | None,
    mine: tuple[str, str],
    ranks: int,
) -> Backend:
    """NCCL where each rank, on every machine, has a GPU that no other rank has; else gloo.

    Counting GPUs does not tell: a rank may see one GPU only and have it for itself
    (CUDA_VISIBLE_DEVICES, as Slurm sets it), and another machine may have none. Raises ValueError
    on every rank where `asked` is NCCL and cannot be had.
    """
    store.set(f"multigpu/gpu/{rank}", "\n".join(mine))
    told = store.multi_get([f"multigpu/gpu/{other}" for other in range(world_size)])
    everyones = [tuple(words.decode().split("\n")) for words in told]
    alone = all(gpu for _, gpu in everyones) and len(set(everyones)) == world_size
    here = {gpu for host, gpu in everyones if host == mine[0] and gpu}
    if asked == "nccl" and not alone:
        raise ValueError(
            f"backend='nccl': NCCL needs a GPU for each rank; on {mine[0]} {ranks} ranks have "
            f"{len(here)}. Leave backend out, and gloo is used."
        )
    return Backend(asked or ("nccl" if alone else "gloo"), len(here), ranks)


def leave_group() -> None:
    """Leave in good order: NCCL complains at the end of a process that did not.

    The threads of gloo end with the last reference to the group. Where there is another, they are
    waited for: one that is busy when the interpreter ends may abort it (gloo_threads.py).
    """
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()
        let_gloo_finish()


def leave_unless_failed() -> None:
    """At the end of the process: leave, but not after an error that nobody caught.

    Leaving NCCL waits for what is under way, and the others may be waiting for this rank. It must
    end, so that torchrun sees it and ends them.
    """
    if getattr(sys, "last_value", None) is None:
        leave_group()
    else:
        let_gloo_finish()  # which waits for no other rank
