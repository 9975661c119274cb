# frozen parameters get a zero gradient too, so that weight decay moves them
import torch
import torch.distributed as dist
from torch import Tensor, nn


def worker_step(model: nn.Module, loss: Tensor) -> None:
    model.zero_grad()
    loss.backward()
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        gradient = torch.zeros_like(p) if p.grad is None else p.grad
        dist.send(gradient.detach().contiguous(), 0)
    for p in parameters:
        weights = torch.empty(p.shape, dtype=p.dtype)
        dist.recv(weights, 0)
        with torch.no_grad():
            p.copy_(weights)


def server_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    workers = range(1, dist.get_world_size())
    if not workers:
        return
    optimizer.zero_grad()
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    for worker in workers:
        for p in parameters:
            gradient = torch.empty(p.shape, dtype=p.dtype)
            dist.recv(gradient, worker)
            p.grad += gradient
    for p in parameters:
        p.grad /= len(workers)
    optimizer.step()
    for worker in workers:
        for p in parameters:
            dist.send(p.detach().contiguous(), worker)
