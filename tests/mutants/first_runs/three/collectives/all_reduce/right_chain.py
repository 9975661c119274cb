# unusual: a running sum goes along the line of ranks, and the total comes back along it
import torch
import torch.distributed as dist
from torch import Tensor


@torch.no_grad()
def all_reduce(tensor: Tensor) -> None:
    me, last = dist.get_rank(), dist.get_world_size() - 1
    if me > 0:
        so_far = torch.zeros_like(tensor)
        dist.recv(so_far, me - 1)
        tensor += so_far
    if me < last:
        dist.send(tensor, me + 1)
        dist.recv(tensor, me + 1)
    if me > 0:
        dist.send(tensor, me - 1)
