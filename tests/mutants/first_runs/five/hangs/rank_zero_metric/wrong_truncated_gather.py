# mistake: all_gather with receive buffers shaped like this rank's own values, although lengths differ
import torch
import torch.distributed as dist
from torch import Tensor


def rank_zero_metric(values: Tensor) -> float:
    parts = [torch.zeros_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, values)
    return torch.cat(parts).mean().item()
