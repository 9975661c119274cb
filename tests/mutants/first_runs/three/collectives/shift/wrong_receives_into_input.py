# sends a clone, but receives into the tensor that was given and returns that one
import torch
import torch.distributed as dist
from torch import Tensor


def shift(tensor: Tensor) -> Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return tensor.clone()
    handle = dist.isend(tensor.clone(), (rank + 1) % n)
    dist.recv(tensor, (rank - 1) % n)
    handle.wait()
    return tensor
