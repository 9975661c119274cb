# Style: the plain one; broadcast every parameter and buffer, reuse average_gradients.
import torch
import torch.distributed as dist
from torch import nn


class NaiveDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor, src=0)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        average_gradients(self.module)
