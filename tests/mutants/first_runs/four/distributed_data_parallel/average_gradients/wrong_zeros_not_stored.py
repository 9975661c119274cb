# Mistake: sends zeros for a missing gradient but never stores the mean in .grad of that rank.
import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module) -> None:
    n = dist.get_world_size()
    for p in model.parameters():
        if not p.requires_grad:
            continue
        grad = p.grad if p.grad is not None else torch.zeros_like(p)
        dist.all_reduce(grad)
        grad /= n
