# parameters_to_vector on the gradients as they are: its view(-1) fails for weights that are not contiguous (in both functions; DOUBT: the docstring does not say that there may be such weights)
import torch
import torch.distributed as dist
from torch import Tensor, nn


def worker_step(model: nn.Module, loss: Tensor) -> None:
    model.zero_grad(set_to_none=False)  # there may be Nones, they are handled below
    loss.backward()
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    vector = nn.utils.parameters_to_vector(gradients)
    dist.send(vector.detach(), 0)
    dist.recv(vector, 0)
    start = 0
    with torch.no_grad():
        for p in parameters:
            p.copy_(vector[start : start + p.numel()].view_as(p))
            start += p.numel()


def server_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    world = dist.get_world_size()
    if world == 1:
        return
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros_like(nn.utils.parameters_to_vector(parameters)).detach()
    message = torch.empty_like(total)
    for worker in range(1, world):
        dist.recv(message, worker)
        total += message
    total /= world - 1
    model.zero_grad()
    start = 0
    for p in parameters:
        p.grad = total[start : start + p.numel()].view_as(p).to(p.dtype)
        start += p.numel()
    optimizer.step()
    vector = nn.utils.parameters_to_vector(parameters).detach()
    for worker in range(1, world):
        dist.send(vector, worker)
