# Mistake: sends only floating-point tensors (integer buffers such as num_batches_tracked are left out).
import torch
import torch.distributed as dist
from torch import nn


class NaiveDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        for t in [*module.parameters(), *module.buffers()]:
            if t.is_floating_point():
                dist.broadcast(t.data, src=0)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        average_gradients(self.module)
