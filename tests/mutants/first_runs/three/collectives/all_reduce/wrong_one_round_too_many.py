# n rounds in place of n - 1: the own tensor counts twice (also wrong on one rank)
import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor) -> None:
    travelling = tensor.clone()
    for _ in range(dist.get_world_size()):
        travelling = shift(travelling)
        tensor.add_(travelling)
