# Mistake: keeps the module in a list, so parameters() of the wrapper is empty.
import torch
import torch.distributed as dist
from torch import nn


class NaiveDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.wrapped = [module]
        for t in [*module.parameters(), *module.buffers()]:
            dist.broadcast(t.data, src=0)

    def forward(self, *inputs, **named):
        return self.wrapped[0](*inputs, **named)

    def sync_gradients(self) -> None:
        average_gradients(self.wrapped[0])
