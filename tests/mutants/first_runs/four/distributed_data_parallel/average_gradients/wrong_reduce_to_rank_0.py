# Mistake: reduces to rank 0 only; the other ranks keep their own (or partial sums).
import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module) -> None:
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.reduce(p.grad, dst=0)
            if dist.get_rank() == 0:
                p.grad /= dist.get_world_size()
