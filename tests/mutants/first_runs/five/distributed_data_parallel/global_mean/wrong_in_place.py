# mistake: a single value is reduced in place (cumsum_ trick / view of values): the caller's values change
import torch
import torch.distributed as dist
from torch import Tensor


def global_mean(values: Tensor) -> float:
    count = torch.tensor(float(values.numel()), dtype=torch.float64)
    flat = values.view(-1).to(torch.float64)  # the very same memory where values are float64 already
    if flat.numel() > 0:
        total = flat.cumsum_(0)[-1]
    else:
        total = flat.new_zeros(())
    dist.all_reduce(total)
    dist.all_reduce(count)
    return (total / count).item()
