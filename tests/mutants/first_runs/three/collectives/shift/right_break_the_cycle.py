# only blocking calls: rank 0 receives first, everybody else sends first
import torch
import torch.distributed as dist
from torch import Tensor


def shift(tensor: Tensor) -> Tensor:
    rank, size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    out = torch.empty_like(tensor)
    if size == 1:
        out.copy_(tensor)
    elif rank == 0:
        dist.recv(out, src=left)
        dist.send(tensor, dst=right)
    else:
        dist.send(tensor, dst=right)
        dist.recv(out, src=left)
    return out
