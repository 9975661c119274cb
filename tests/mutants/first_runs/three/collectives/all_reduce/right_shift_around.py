# the own tensors go around with shift, everyone adds what comes by
import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor) -> None:
    travelling = tensor.clone()
    for _ in range(dist.get_world_size() - 1):
        travelling = shift(travelling)
        tensor.add_(travelling)
