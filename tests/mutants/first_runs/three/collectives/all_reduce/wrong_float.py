# adds in float32: large integers lose their last digits
import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor) -> None:
    total = tensor.float()
    travelling = total.clone()
    for _ in range(dist.get_world_size() - 1):
        travelling = shift(travelling)
        total = total + travelling
    tensor.copy_(total)
