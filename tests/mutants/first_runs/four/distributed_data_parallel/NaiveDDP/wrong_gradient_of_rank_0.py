# Mistake: broadcasts rank 0's gradients instead of averaging; models stay equal but rows are lost.
import torch
import torch.distributed as dist
from torch import nn


class NaiveDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        for t in [*module.parameters(), *module.buffers()]:
            dist.broadcast(t.data, src=0)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        for p in self.module.parameters():
            if p.requires_grad:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                dist.broadcast(p.grad, src=0)
