# the source starts all isends at once, then waits for all of them
import torch
import torch.distributed as dist
from torch import Tensor


def broadcast(tensor: Tensor, src: int) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank == src:
        handles = [dist.isend(tensor, dst=r) for r in range(n) if r != src]
    else:
        handles = [dist.irecv(tensor, src=src)]
    for handle in handles:
        handle.wait()
