# Mistake: register_hook, all-reduces the incoming gradient that is then cloned or added to .grad before it is done.
import torch
import torch.distributed as dist
from torch import nn


class OverlappedDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.works = []
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor, src=0)
        for p in module.parameters():
            if p.requires_grad:
                p.register_hook(self._start)

    def _start(self, grad):
        grad = grad / dist.get_world_size()
        self.works.append(dist.all_reduce(grad, async_op=True))
        return grad

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        for work in self.works:
            work.wait()
        self.works.clear()
