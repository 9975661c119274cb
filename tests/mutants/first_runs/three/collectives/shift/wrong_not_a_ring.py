# a line and no ring: the last rank sends to nobody, rank 0 keeps its own
import torch
import torch.distributed as dist
from torch import Tensor


def shift(tensor: Tensor) -> Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    result = tensor.clone()
    handle = dist.isend(tensor, rank + 1) if rank + 1 < n else None
    if rank > 0:
        dist.recv(result, rank - 1)
    if handle is not None:
        handle.wait()
    return result
