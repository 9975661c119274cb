# Style: unusual, a generator that is advanced by every gradient walks over the buckets; no counters; a bucket with mixed dtypes travels in the wider one (torch.cat promotes).
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn


def _plan(module, limit):
    """Yield the buckets, last parameters first."""
    bucket, room = [], limit
    for p in [p for p in module.parameters() if p.requires_grad][::-1]:
        need = p.numel() * p.element_size()
        if bucket and need > room:
            yield bucket
            bucket, room = [], limit
        bucket.append(p)
        room -= need
    if bucket:
        yield bucket


class BucketedDDP(nn.Module):
    def __init__(self, module: nn.Module, bucket_bytes: int = 25 * 2**20) -> None:
        super().__init__()
        self.module = module
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), src=0)
        self._plan = tuple(_plan(module, bucket_bytes))
        self._silent = False
        self._walk = None
        for bucket in self._plan:
            for p in bucket:
                p.register_post_accumulate_grad_hook(self._arrived)

    def _arrived(self, p):
        if self._silent:
            return
        if self._walk is None:
            self._walk = self._walking()
            next(self._walk)
        self._walk.send(p)

    def _walking(self):
        """Take parameters whose gradients are ready, None for 'no more will come'."""
        there, flying, over = set(), [], False
        for bucket in self._plan:
            while not over and not there.issuperset(bucket):
                got = yield
                over = got is None
                there.add(got)
            flat = torch.cat(
                [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket]
            )
            flying.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
        while not over:
            over = (yield) is None
        for bucket, flat, work in flying:
            work.wait()
            parts = (flat / dist.get_world_size()).split([p.numel() for p in bucket])
            for p, part in zip(bucket, parts, strict=True):
                p.grad = part.reshape(p.shape).to(p.dtype, copy=True)
        yield

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        if self._silent:
            return
        walk, self._walk = self._walk, None
        if walk is None:
            walk = self._walking()
            next(walk)
        walk.send(None)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        old = self._silent
        self._silent = True
        try:
            yield
        finally:
            self._silent = old
