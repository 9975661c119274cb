# Mistake: averages the weights as well as the gradients ('to be safe').
import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module) -> None:
    for p in model.parameters():
        if not p.requires_grad:
            continue
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        for t in (p.grad, p.data):
            dist.all_reduce(t)
            t /= dist.get_world_size()
