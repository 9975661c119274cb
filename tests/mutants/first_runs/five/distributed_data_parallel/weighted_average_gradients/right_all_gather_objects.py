# style: unusual: every rank gathers (rows, gradients) of all as objects and adds up itself
import torch
import torch.distributed as dist
from torch import nn


def weighted_average_gradients(model: nn.Module, num_samples: int) -> None:
    mine = {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (num_samples, mine))
    total = sum(rows for rows, _ in everyone)
    for name, p in model.named_parameters():
        terms = [grads[name] * (rows / total) for rows, grads in everyone if rows and name in grads]
        if terms:
            p.grad = torch.stack(terms).sum(0).to(p.device)
