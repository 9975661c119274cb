# butterfly without care for other numbers than powers of two: right on 2 and 4, fails on 3
import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    other = torch.empty_like(tensor)
    distance = 1
    while distance < n:
        partner = rank ^ distance
        if partner < n:
            handle = dist.isend(tensor, partner)
            dist.recv(other, partner)
            handle.wait()
            tensor.add_(other)
        distance *= 2
