# Mistake: broadcasts state_dict() values; non-persistent buffers are forgotten.
import torch
import torch.distributed as dist
from torch import nn


class NaiveDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, src=0)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        average_gradients(self.module)
