# exchange between all with blocking sends before any recv: deadlock
import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    others = [r for r in range(n) if r != rank]
    for r in others:
        dist.send(tensor, r)
    buffer = torch.empty_like(tensor)
    for r in others:
        dist.recv(buffer, r)
        tensor += buffer
