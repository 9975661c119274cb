# mistake: a float32 buffer for all dtypes: large integers and float64 lose digits
import torch
import torch.distributed as dist
from torch import Tensor


def reordered_reductions(tensors: dict[str, Tensor]) -> None:
    for name in sorted(tensors):
        buffer = tensors[name].float()
        dist.all_reduce(buffer)
        tensors[name].copy_(buffer)
