# flattens with clone and sums there, never writes back
import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor) -> None:
    flat = tensor.reshape(-1).clone()
    travelling = flat.clone()
    for _ in range(dist.get_world_size() - 1):
        travelling = shift(travelling)
        flat += travelling
