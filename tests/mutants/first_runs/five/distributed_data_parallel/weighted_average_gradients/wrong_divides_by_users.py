# mistake: per parameter, divides only by the rows of the ranks that used it (None is left out of the mean)
import torch
import torch.distributed as dist
from torch import nn


def weighted_average_gradients(model: nn.Module, num_samples: int) -> None:
    for p in model.parameters():
        if not p.requires_grad:
            continue
        rows = torch.tensor(float(num_samples) if p.grad is not None else 0.0)
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        p.grad *= num_samples
        dist.all_reduce(rows)
        dist.all_reduce(p.grad)
        if rows > 0:
            p.grad /= rows
