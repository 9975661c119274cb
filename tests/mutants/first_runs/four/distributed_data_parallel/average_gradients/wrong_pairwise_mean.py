# Mistake: broadcasts one rank after another and takes a running mean of two; right on 2 ranks only.
import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module) -> None:
    rank = dist.get_rank()
    for p in model.parameters():
        if not p.requires_grad:
            continue
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        mean = None
        for src in range(dist.get_world_size()):
            part = p.grad.clone() if src == rank else torch.zeros_like(p.grad)
            dist.broadcast(part, src=src)
            mean = part if mean is None else (mean + part) / 2
        p.grad.copy_(mean)
