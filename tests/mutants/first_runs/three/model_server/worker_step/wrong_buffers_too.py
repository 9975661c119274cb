# both sides send state_dict() down: buffers are overwritten by the server's, tied weights travel twice
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
    for value in model.state_dict().values():
        weights = torch.empty(value.shape, dtype=value.dtype)
        dist.recv(weights, 0)
        value.copy_(weights)


def server_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    workers = range(1, dist.get_world_size())
    if not workers:
        return
    optimizer.zero_grad()
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
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
        for value in model.state_dict().values():
            dist.send(value.contiguous(), worker)
