# style: rank 0 computes (reduce) and tells the others (broadcast)
import torch
import torch.distributed as dist
from torch import Tensor


def rank_zero_metric(values: Tensor) -> float:
    total = torch.tensor([0.0, len(values)], dtype=torch.float64, device=values.device)
    total[0] = values.detach().double().sum()
    dist.reduce(total, dst=0)
    if dist.get_rank() == 0:
        mean = total[0] / total[1]
    else:
        mean = torch.empty((), dtype=torch.float64, device=values.device)
    dist.broadcast(mean, src=0)
    return mean.item()
