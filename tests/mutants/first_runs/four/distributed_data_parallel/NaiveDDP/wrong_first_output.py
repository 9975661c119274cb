# Mistake: forward unpacks the output, returns only the first of several.
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
        out = self.module(*inputs, **named)
        return out[0] if isinstance(out, tuple | list) else out

    def sync_gradients(self) -> None:
        average_gradients(self.module)
