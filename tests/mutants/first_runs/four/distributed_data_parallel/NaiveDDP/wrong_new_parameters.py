# Mistake: puts new Parameter objects into the module instead of writing into the old ones; loses ties and requires_grad=False too.
import torch
import torch.distributed as dist
from torch import nn


class NaiveDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        for part in module.modules():
            for name, p in list(part._parameters.items()):
                if p is not None:
                    value = p.detach().clone()
                    dist.broadcast(value, src=0)
                    setattr(part, name, nn.Parameter(value))
        for b in module.buffers():
            dist.broadcast(b, src=0)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        average_gradients(self.module)
