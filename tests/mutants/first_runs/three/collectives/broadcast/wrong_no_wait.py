# isend to all, and returns without waiting; the caller may change the tensor while it is sent
import torch
import torch.distributed as dist
from torch import Tensor


def broadcast(tensor: Tensor, src: int) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank == src:
        for r in range(n):
            if r != src:
                dist.isend(tensor, r)
    else:
        dist.recv(tensor, src)
