# butterfly with XOR partners; ranks above the largest power of two fold in first and get the result last
import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    power = 1 << (n.bit_length() - 1)
    if rank >= power:
        dist.send(tensor, rank - power)
        dist.recv(tensor, rank - power)
        return
    other = torch.empty_like(tensor)
    if rank + power < n:
        dist.recv(other, rank + power)
        tensor.add_(other)
    distance = 1
    while distance < power:
        handle = dist.isend(tensor, rank ^ distance)
        dist.recv(other, rank ^ distance)
        handle.wait()
        tensor.add_(other)
        distance *= 2
    if rank + power < n:
        dist.send(tensor, rank + power)
