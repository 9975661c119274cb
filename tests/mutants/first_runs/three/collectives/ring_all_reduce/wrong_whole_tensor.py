# the whole tensor goes around the ring: right sum, messages n times too long
import torch
import torch.distributed as dist
from torch import Tensor


def ring_all_reduce(tensor: Tensor) -> None:
    travelling = tensor.clone()
    for _ in range(dist.get_world_size() - 1):
        travelling = shift(travelling)
        tensor += travelling
