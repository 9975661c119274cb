# Mistake: the hooks only count; everything is started when the last gradient is there (no overlap).
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
        self.ready = []
        self.count = sum(p.requires_grad for p in module.parameters())
        for p in module.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self._start)

    def _start(self, p):
        self.ready.append(p)
        if len(self.ready) == self.count:
            self.works = [(q, dist.all_reduce(q.grad, async_op=True)) for q in self.ready]
            self.ready = []

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        for p, work in self.works:
            work.wait()
            p.grad /= dist.get_world_size()
        self.works.clear()
