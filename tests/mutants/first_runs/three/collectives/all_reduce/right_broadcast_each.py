# unusual: n broadcasts, one from every rank, and a sum of what they bring
import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor) -> None:
    own = tensor.clone()
    tensor.zero_()
    for src in range(dist.get_world_size()):
        part = own.clone()
        broadcast(part, src)
        tensor += part
