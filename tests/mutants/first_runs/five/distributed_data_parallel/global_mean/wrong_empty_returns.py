# mistake: a rank without values returns nan at once, the others wait for ever
import torch
import torch.distributed as dist
from torch import Tensor


def global_mean(values: Tensor) -> float:
    if values.numel() == 0:
        return float("nan")
    stats = torch.tensor([values.double().sum().item(), values.numel()], dtype=torch.float64)
    dist.all_reduce(stats)
    return (stats[0] / stats[1]).item()
