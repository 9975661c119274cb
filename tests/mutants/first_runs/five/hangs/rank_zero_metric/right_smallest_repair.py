# style: the smallest repair: the all-reduce is taken out of the if
import torch
import torch.distributed as dist
from torch import Tensor


def rank_zero_metric(values: Tensor) -> float:
    total = torch.stack([values.sum(), values.new_tensor(len(values))])  # sum, count
    dist.all_reduce(total)
    return (total[0] / total[1]).item()
