# mistake: all-reduces the values themselves: changes them, and their lengths differ
import torch
import torch.distributed as dist
from torch import Tensor


def rank_zero_metric(values: Tensor) -> float:
    count = values.new_tensor(len(values))
    dist.all_reduce(values)
    dist.all_reduce(count)
    return (values.sum() / count).item()
