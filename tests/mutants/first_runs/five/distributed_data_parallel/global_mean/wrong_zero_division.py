# mistake: divides Python numbers, so that no values anywhere raise ZeroDivisionError
import torch
import torch.distributed as dist
from torch import Tensor


def global_mean(values: Tensor) -> float:
    stats = torch.tensor([values.double().sum().item(), float(values.numel())], dtype=torch.float64)
    dist.all_reduce(stats)
    total, count = stats.tolist()
    return total / count
