# Style: divide first, start all all-reduces asynchronously, wait for all at the end.
import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module) -> None:
    n = dist.get_world_size()
    works = []
    with torch.no_grad():
        for _, p in model.named_parameters():
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad.div(n).contiguous()
                works.append(dist.all_reduce(p.grad, async_op=True))
    for work in works:
        work.wait()
