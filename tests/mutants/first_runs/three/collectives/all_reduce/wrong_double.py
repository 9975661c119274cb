# adds in float64 'for precision': int64 above 2**53 is not exact
import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor) -> None:
    total = tensor.double()
    travelling = tensor
    for _ in range(dist.get_world_size() - 1):
        travelling = shift(travelling)
        total += travelling.double()
    tensor.copy_(total)
