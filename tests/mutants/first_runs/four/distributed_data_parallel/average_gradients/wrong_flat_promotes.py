# Mistake: one flat vector for all dtypes; torch.cat promotes, and .grad gets the wrong dtype (error) in mixed models.
import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module) -> None:
    params = [p for p in model.parameters() if p.requires_grad]
    flat = torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in params]
    )
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    start = 0
    for p in params:
        p.grad = flat[start : start + p.numel()].view_as(p)
        start += p.numel()
