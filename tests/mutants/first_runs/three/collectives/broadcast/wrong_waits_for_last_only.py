# keeps one handle variable and waits for the last isend alone (right on 2 ranks)
import torch
import torch.distributed as dist
from torch import Tensor


def broadcast(tensor: Tensor, src: int) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank != src:
        dist.recv(tensor, src)
        return
    handle = None
    for r in range(n):
        if r != src:
            handle = dist.isend(tensor, r)
    if handle is not None:
        handle.wait()
