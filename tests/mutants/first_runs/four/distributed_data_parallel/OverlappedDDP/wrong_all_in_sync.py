# Mistake: no hooks; all all-reduces are started in sync_gradients, after backward.
import torch
import torch.distributed as dist
from torch import nn


class OverlappedDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor, src=0)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        params = [p for p in self.module.parameters() if p.requires_grad][::-1]
        works = [dist.all_reduce(p.grad, async_op=True) for p in params]
        for p, work in zip(params, works, strict=True):
            work.wait()
            p.grad /= dist.get_world_size()
