# mistake: the flat tensor of all gradients is still there in the inner step
import torch
import torch.distributed as dist
from torch import nn


class Zero2Optimizer:
    def __init__(self, params, optimizer_class, **kwargs):
        self.rank, self.n = dist.get_rank(), dist.get_world_size()
        self.params = [p for p in params if p.requires_grad]
        total = sum(p.numel() for p in self.params)
        self.length = max(1, -(-total // self.n))
        first = self.params[0]
        self.flat = torch.zeros(self.length * self.n, dtype=first.dtype, device=first.device)
        at = 0
        for p in self.params:
            self.flat[at : at + p.numel()] = p.detach().flatten()
            p.data = self.flat[at : at + p.numel()].view(p.shape)
            at += p.numel()
        self.shard = nn.Parameter(self.flat[self.rank * self.length : (self.rank + 1) * self.length])
        self.inner = optimizer_class([self.shard], **kwargs)

    @property
    def param_groups(self):
        return self.inner.param_groups

    def zero_grad(self):
        for p in self.params:
            p.grad = None
        self.shard.grad = None

    def step(self):
        whole, at = torch.zeros_like(self.flat), 0
        for p in self.params:
            if p.grad is not None:
                whole[at : at + p.numel()] = p.grad.flatten()
                p.grad = None
            at += p.numel()
        mean = torch.empty_like(self.shard.detach())
        dist.reduce_scatter(mean, list(whole.split(self.length)))
        self.shard.grad = mean.div_(self.n)
        del mean
        self.inner.step()
        dist.all_gather(list(self.flat.split(self.length)), self.shard.detach().clone())
