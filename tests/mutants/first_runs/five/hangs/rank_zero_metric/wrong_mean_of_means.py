# mistake: the mean of the ranks' means
import torch.distributed as dist
from torch import Tensor


def rank_zero_metric(values: Tensor) -> float:
    mean = values.mean()
    dist.all_reduce(mean)
    return (mean / dist.get_world_size()).item()
