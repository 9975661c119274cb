# Style: one flat vector for each dtype and device, one collective each, copied back.
from collections import defaultdict

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module) -> None:
    groups = defaultdict(list)
    for p in model.parameters():
        if p.requires_grad:
            groups[p.dtype, p.device].append(p)
    for params in groups.values():
        flat = torch.cat(
            [
                (torch.zeros_like(p) if p.grad is None else p.grad).detach().reshape(-1)
                for p in params
            ]
        )
        dist.all_reduce(flat, op=dist.ReduceOp.SUM)
        flat.div_(dist.get_world_size())
        for p, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
            p.grad = part.view_as(p).clone()
