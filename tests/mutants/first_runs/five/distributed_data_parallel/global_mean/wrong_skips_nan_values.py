# mistake: uses nansum to be "safe", so a nan among the values is hidden and still counted
import torch
import torch.distributed as dist
from torch import Tensor


def global_mean(values: Tensor) -> float:
    stats = torch.stack([values.double().nansum(), torch.tensor(float(values.numel())).double()])
    dist.all_reduce(stats)
    return (stats[0] / stats[1]).item()
