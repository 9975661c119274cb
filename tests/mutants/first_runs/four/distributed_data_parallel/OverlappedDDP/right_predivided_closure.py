# Style: divide in the hook before sending, closures over local variables, sync only waits.
from collections import deque

import torch
import torch.distributed as dist
from torch import nn


class OverlappedDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor, src=0)
        world_size = dist.get_world_size()
        pending = deque()

        def hook(param):
            param.grad.div_(world_size)
            pending.append(dist.all_reduce(param.grad, async_op=True))

        def wait():
            while pending:
                pending.popleft().wait()

        self._wait = wait
        for param in module.parameters():
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(hook)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        self._wait()
