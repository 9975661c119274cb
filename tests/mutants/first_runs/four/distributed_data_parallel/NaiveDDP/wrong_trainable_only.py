# Mistake: frozen parameters are not sent.
import torch
import torch.distributed as dist
from torch import nn


class NaiveDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        for p in module.parameters():
            if p.requires_grad:
                dist.broadcast(p.data, src=0)
        for b in module.buffers():
            dist.broadcast(b, src=0)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        average_gradients(self.module)
