# mistake: float32 accumulation: large integers lose their last digits
import torch
import torch.distributed as dist
from torch import Tensor


def global_mean(values: Tensor) -> float:
    stats = torch.tensor([values.float().sum(), values.numel()], dtype=torch.float32)
    dist.all_reduce(stats)
    return (stats[0] / stats[1]).item()
