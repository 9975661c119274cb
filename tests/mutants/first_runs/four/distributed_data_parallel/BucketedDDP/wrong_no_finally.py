# Mistake: no try/finally in no_sync; after an exception inside nothing is ever sent again.
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn


class BucketedDDP(nn.Module):
    def __init__(self, module: nn.Module, bucket_bytes: int = 25 * 2**20) -> None:
        super().__init__()
        self.module = module
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, src=0)

        params = [p for p in module.parameters() if p.requires_grad]
        self.buckets, size = [], 0
        for p in reversed(params):
            nbytes = p.numel() * p.element_size()
            if not self.buckets or size + nbytes > bucket_bytes or self.buckets[-1][0].dtype != p.dtype:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(p)
            size += nbytes
        self.bucket_of = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        self.sync = True
        self._reset()
        for p in params:
            p.register_post_accumulate_grad_hook(self._ready)

    def _reset(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.started = []  # (flat, work) of the buckets 0, 1, 2, ... in this order

    def _ready(self, p):
        if not self.sync:
            return
        self.missing[self.bucket_of[p]] -= 1
        # a full bucket waits for those before it, so all ranks start them in one order
        while len(self.started) < len(self.buckets) and self.missing[len(self.started)] == 0:
            self._start()

    def _start(self):
        bucket = self.buckets[len(self.started)]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([g.detach().reshape(-1) for g in grads])
        self.started.append((flat, dist.all_reduce(flat, async_op=True)))

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        if not self.sync:
            return
        while len(self.started) < len(self.buckets):
            self._start()
        for bucket, (flat, work) in zip(self.buckets, self.started, strict=True):
            work.wait()
            flat /= dist.get_world_size()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                if p.grad is None:
                    p.grad = part.view_as(p).clone()
                else:
                    p.grad.copy_(part.view_as(p))
        self._reset()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self.sync = self.sync, False
        yield
        self.sync = before
