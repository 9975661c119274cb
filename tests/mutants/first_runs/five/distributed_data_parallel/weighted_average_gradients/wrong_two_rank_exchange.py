# mistake: exchanges with one neighbour only: right on 2 ranks, not on 3
import torch
import torch.distributed as dist
from torch import nn


def _swap(tensor):
    rank, world = dist.get_rank(), dist.get_world_size()
    if world == 1:
        return torch.zeros_like(tensor)
    other = torch.empty_like(tensor)
    send = dist.isend(tensor, (rank + 1) % world)
    dist.recv(other, (rank - 1) % world)
    send.wait()
    return other


def weighted_average_gradients(model: nn.Module, num_samples: int) -> None:
    rows = torch.tensor([float(num_samples)])
    total = (rows + _swap(rows)).item()
    for p in model.parameters():
        if p.requires_grad:
            grad = torch.zeros_like(p) if p.grad is None else p.grad * num_samples
            p.grad = (grad + _swap(grad)) / max(total, 1.0)
