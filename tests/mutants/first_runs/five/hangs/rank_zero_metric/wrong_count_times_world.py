# mistake: reduces the sum only and divides by own count times the world size
import torch.distributed as dist
from torch import Tensor


def rank_zero_metric(values: Tensor) -> float:
    total = values.sum()
    dist.all_reduce(total)
    return (total / (len(values) * dist.get_world_size())).item()
