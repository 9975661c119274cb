# unusual: n - 1 rounds of shift; every rank takes the one that comes from src
import torch
import torch.distributed as dist
from torch import Tensor


def broadcast(tensor: Tensor, src: int) -> None:
    n, rank = dist.get_world_size(), dist.get_rank()
    travelling = tensor.detach().clone()
    for step in range(1, n):
        travelling = shift(travelling)
        if (rank - step) % n == src:
            with torch.no_grad():
                tensor.copy_(travelling)
