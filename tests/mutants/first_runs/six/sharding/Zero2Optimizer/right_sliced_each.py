# style: slices of each parameter by itself
import torch
import torch.distributed as dist
from torch import nn


class Zero2Optimizer:
    """One shard per parameter: every parameter is cut into n pieces."""

    def __init__(self, params, optimizer_class, **kwargs):
        self.n, rank = dist.get_world_size(), dist.get_rank()
        self.params = [p for p in params if p.requires_grad]
        self.shards = []
        for p in self.params:
            length = -(-p.numel() // self.n)
            padded = p.detach().new_zeros(length * self.n)
            padded[: p.numel()] = p.detach().reshape(-1)
            self.shards.append(nn.Parameter(padded[rank * length : (rank + 1) * length].clone()))
        self.inner = optimizer_class(self.shards, **kwargs)
        self.param_groups = self.inner.param_groups

    def zero_grad(self):
        for p in [*self.params, *self.shards]:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p, shard in zip(self.params, self.shards):
            length = shard.numel()
            padded = shard.new_zeros(length * self.n)
            if p.grad is not None:  # copied and freed
                padded[: p.numel()] = p.grad.reshape(-1)
                p.grad = None
            shard.grad = torch.empty_like(shard)
            dist.reduce_scatter(shard.grad, list(padded.split(length)))
            shard.grad.div_(self.n)
            del padded
        self.inner.step()
        for p, shard in zip(self.params, self.shards):
            padded = shard.new_empty(shard.numel() * self.n)
            dist.all_gather(list(padded.split(shard.numel())), shard.detach())
            p.copy_(padded[: p.numel()].view_as(p))
