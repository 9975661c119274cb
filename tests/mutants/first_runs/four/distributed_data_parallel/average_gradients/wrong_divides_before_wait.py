# Mistake: divides right after starting, before the asynchronous all-reduce is done (a race).
import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module) -> None:
    works = []
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            works.append(dist.all_reduce(p.grad, async_op=True))
            p.grad /= dist.get_world_size()
    for work in works:
        work.wait()
