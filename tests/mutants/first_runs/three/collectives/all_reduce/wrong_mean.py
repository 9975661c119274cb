# divides by the number of ranks, as for gradients
import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor) -> None:
    n = dist.get_world_size()
    travelling = tensor.clone()
    for _ in range(n - 1):
        travelling = shift(travelling)
        tensor.add_(travelling)
    tensor.copy_(tensor / n)
