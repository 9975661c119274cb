# Mistake: a tied parameter is listed under both names, summed twice, but divided only once.
import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module) -> None:
    params = [p for _, p in model.named_parameters(remove_duplicate=False) if p.requires_grad]
    for p in params:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
    for p in set(params):
        p.grad /= dist.get_world_size()
