# Mistake: divides in the hook right after the start, while the data travel (a race).
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
                p.register_post_accumulate_grad_hook(self._start)

    def _start(self, p):
        work = dist.all_reduce(p.grad, async_op=True)
        p.grad /= dist.get_world_size()
        self.works.append(work)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        for work in self.works:
            work.wait()
        self.works.clear()
