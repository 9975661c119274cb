# mistake: averages the ranks' means, nan of an empty rank replaced by 0
import torch
import torch.distributed as dist
from torch import Tensor


def global_mean(values: Tensor) -> float:
    mean = torch.nan_to_num(values.double().mean())
    dist.all_reduce(mean)
    return (mean / dist.get_world_size()).item()
