# mistake: sums and counts in the dtype of the values: float16 overflows, uint8 wraps around
import torch
import torch.distributed as dist
from torch import Tensor


def global_mean(values: Tensor) -> float:
    total = values.sum(dtype=values.dtype)
    count = torch.tensor(values.numel(), dtype=values.dtype, device=values.device)
    dist.all_reduce(total)
    dist.all_reduce(count)
    return (total / count).item()
