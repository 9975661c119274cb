# Mistake: wraps a deep copy, so the caller's module does not change.
import copy

import torch
import torch.distributed as dist
from torch import nn


class NaiveDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = copy.deepcopy(module)
        for t in [*self.module.parameters(), *self.module.buffers()]:
            dist.broadcast(t.data, src=0)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        average_gradients(self.module)
