# with the collectives reduce (the server adds zeros) and broadcast (DOUBT: is that 'only rank 0 and the workers talk'?)
import torch
import torch.distributed as dist
from torch import Tensor, nn


def worker_step(model: nn.Module, loss: Tensor) -> None:
    model.zero_grad()
    loss.backward()
    trainable = [p for p in model.parameters() if p.requires_grad]
    for p in trainable:
        gradient = torch.zeros_like(p) if p.grad is None else p.grad
        dist.reduce(gradient.detach().clone(memory_format=torch.contiguous_format), dst=0)
    for p in trainable:
        weights = torch.empty(p.shape, dtype=p.dtype)
        dist.broadcast(weights, src=0)
        with torch.no_grad():
            p.copy_(weights)


def server_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    workers = dist.get_world_size() - 1
    if workers == 0:
        return
    optimizer.zero_grad()
    trainable = [p for p in model.parameters() if p.requires_grad]
    for p in trainable:
        total = torch.zeros(p.shape, dtype=p.dtype)
        dist.reduce(total, dst=0)
        p.grad = total / workers
    optimizer.step()
    for p in trainable:
        dist.broadcast(p.detach().contiguous(), src=0)
