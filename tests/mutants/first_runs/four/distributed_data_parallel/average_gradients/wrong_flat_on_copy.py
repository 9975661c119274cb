# Mistake: averages a concatenated copy and never writes it back.
import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module) -> None:
    grads = [
        torch.zeros_like(p) if p.grad is None else p.grad
        for p in model.parameters()
        if p.requires_grad
    ]
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
