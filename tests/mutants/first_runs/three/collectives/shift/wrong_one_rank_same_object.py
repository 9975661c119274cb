# with one rank returns the tensor itself, not a copy
import torch
import torch.distributed as dist
from torch import Tensor


def shift(tensor: Tensor) -> Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return tensor
    result = torch.empty_like(tensor)
    handle = dist.isend(tensor, (rank + 1) % n)
    dist.recv(result, (rank - 1) % n)
    handle.wait()
    return result
