# Mistake: sends the weights of rank 0 again in every forward (numbers stay right; docstring: sent once and never again).
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
        for p in self.module.parameters():
            dist.broadcast(p.data, src=0)
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        average_gradients(self.module)
