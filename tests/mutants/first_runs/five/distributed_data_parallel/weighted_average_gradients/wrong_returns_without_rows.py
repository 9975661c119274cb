# mistake: a rank without rows returns after the count and takes no part in the rest (hangs)
import torch
import torch.distributed as dist
from torch import nn


def weighted_average_gradients(model: nn.Module, num_samples: int) -> None:
    total = torch.tensor(float(num_samples))
    dist.all_reduce(total)
    if num_samples == 0:
        return
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad *= num_samples
            dist.all_reduce(p.grad)
            p.grad /= total
