# Mistake: goes over named_parameters(remove_duplicate=False); a tied parameter has two hooks and is summed twice.
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
        for _, p in module.named_parameters(remove_duplicate=False):
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self._start)

    def _start(self, p):
        self.works.append((p, dist.all_reduce(p.grad, async_op=True)))

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        for p, work in self.works:
            work.wait()
            p.grad /= dist.get_world_size()
        self.works.clear()
