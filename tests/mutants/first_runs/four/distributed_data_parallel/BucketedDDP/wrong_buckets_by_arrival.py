# Mistake: fills buckets with gradients in the order in which they arrive; ranks that skip a parameter build other buckets than the rest.
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn


class BucketedDDP(nn.Module):
    def __init__(self, module: nn.Module, bucket_bytes: int = 25 * 2**20) -> None:
        super().__init__()
        self.module = module
        self.bucket_bytes = bucket_bytes
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, src=0)
        self.open, self.size, self.flying, self.sync = [], 0, [], True
        for p in module.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self._add)

    def _add(self, p):
        if not self.sync:
            return
        nbytes = p.grad.numel() * p.grad.element_size()
        if self.open and self.size + nbytes > self.bucket_bytes:
            self._send()
        self.open.append(p)
        self.size += nbytes

    def _send(self):
        flat = torch.cat([p.grad.reshape(-1) for p in self.open])
        self.flying.append((self.open, flat, dist.all_reduce(flat, async_op=True)))
        self.open, self.size = [], 0

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        if not self.sync:
            return
        missing = [p for p in self.module.parameters() if p.requires_grad and p.grad is None]
        for p in missing:
            p.grad = torch.zeros_like(p)
            self._add(p)
        if self.open:
            self._send()
        for params, flat, work in self.flying:
            work.wait()
            flat /= dist.get_world_size()
            for p, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
                p.grad.copy_(part.view_as(p))
        self.flying = []

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.sync = False
        try:
            yield
        finally:
            self.sync = True
