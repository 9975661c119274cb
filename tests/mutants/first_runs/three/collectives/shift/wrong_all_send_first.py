# everybody sends (blocking) before receiving: deadlock
import torch
import torch.distributed as dist
from torch import Tensor


def shift(tensor: Tensor) -> Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return tensor.clone()
    result = torch.empty_like(tensor)
    dist.send(tensor, (rank + 1) % n)
    dist.recv(result, (rank - 1) % n)
    return result
