# style: all gradients and the number of rows in one float64 vector, a single all-reduce
import torch
import torch.distributed as dist
from torch import nn


def weighted_average_gradients(model: nn.Module, num_samples: int) -> None:
    params = [p for p in model.parameters() if p.requires_grad]
    if not params:
        return
    pieces = [
        (torch.zeros_like(p) if p.grad is None else p.grad).detach().reshape(-1).double() * num_samples
        for p in params
    ]
    pieces.append(torch.tensor([num_samples], dtype=torch.float64, device=params[0].device))
    flat = torch.cat(pieces)
    dist.all_reduce(flat)
    flat /= flat[-1].clone()
    start = 0
    for p in params:
        p.grad = flat[start : start + p.numel()].view_as(p).to(p.dtype)
        start += p.numel()
