# Mistake: divides by the number of ranks that had a gradient, not of all ranks.
import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module) -> None:
    for p in model.parameters():
        if not p.requires_grad:
            continue
        users = torch.tensor(0.0 if p.grad is None else 1.0, device=p.device)
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(users)
        dist.all_reduce(p.grad)
        p.grad /= users.clamp(min=1)
