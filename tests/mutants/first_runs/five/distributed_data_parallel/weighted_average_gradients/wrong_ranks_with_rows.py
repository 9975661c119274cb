# mistake: a mean over the ranks that have rows, each of them counting the same
import torch
import torch.distributed as dist
from torch import nn


def weighted_average_gradients(model: nn.Module, num_samples: int) -> None:
    active = torch.tensor(1.0 if num_samples > 0 else 0.0)
    dist.all_reduce(active)
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= active
