# adds into the tensor that is still being sent, and waits afterwards
import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    others = [r for r in range(n) if r != rank]
    handles = [dist.isend(tensor, r) for r in others]
    buffer = torch.empty_like(tensor)
    for r in others:
        dist.recv(buffer, r)
        tensor += buffer
    for handle in handles:
        handle.wait()
