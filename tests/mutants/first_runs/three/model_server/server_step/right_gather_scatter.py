# with the collectives gather and scatter ('any call of torch.distributed'), frozen parameters travel too
import torch
import torch.distributed as dist
from torch import Tensor, nn


def worker_step(model: nn.Module, loss: Tensor) -> None:
    for p in model.parameters():
        p.grad = None
    loss.backward()
    for p in model.parameters():
        mine = torch.zeros_like(p) if p.grad is None else p.grad
        dist.gather(mine.contiguous(), dst=0)
    for p in model.parameters():
        weights = torch.empty(p.shape, dtype=p.dtype)
        dist.scatter(weights, src=0)
        p.data.copy_(weights)


def server_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    world = dist.get_world_size()
    if world == 1:
        return
    for p in model.parameters():
        parts = [torch.empty(p.shape, dtype=p.dtype) for _ in range(world)]
        dist.gather(torch.zeros(p.shape, dtype=p.dtype), parts, dst=0)
        p.grad = torch.stack(parts[1:]).mean(0) if p.requires_grad else None
    optimizer.step()
    for p in model.parameters():
        weights = p.detach().contiguous()
        dist.scatter(torch.empty_like(weights), [weights] * world, src=0)
