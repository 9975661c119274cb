# Mistake: full backward hooks of modules run before the module's own parameter gradients are sure to be there.
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
        for part in module.modules():
            part.register_full_backward_hook(self._start)

    def _start(self, part, grad_input, grad_output):
        for p in part.parameters(recurse=False):
            if p.requires_grad and p.grad is not None:
                self.works.append((p, dist.all_reduce(p.grad, async_op=True)))

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        for p, work in self.works:
            work.wait()
            p.grad /= dist.get_world_size()
        self.works.clear()
