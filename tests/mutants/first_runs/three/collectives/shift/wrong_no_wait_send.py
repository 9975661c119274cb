# never waits for the handle of isend (it looks fine, because recv blocks)
import torch
import torch.distributed as dist
from torch import Tensor


def shift(tensor: Tensor) -> Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return tensor.clone()
    result = torch.empty_like(tensor)
    dist.isend(tensor, (rank + 1) % n)
    dist.recv(result, (rank - 1) % n)
    return result
