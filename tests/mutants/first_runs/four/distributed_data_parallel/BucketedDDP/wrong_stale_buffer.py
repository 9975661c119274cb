# Mistake: the flat buffer still holds the last step's mean where a gradient is missing; right in the first step.
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import nn


class BucketedDDP(nn.Module):
    def __init__(self, module: nn.Module, bucket_bytes: int = 25 * 2**20) -> None:
        super().__init__()
        self.module = module
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, src=0)
        self.buckets, group, size = [], [], 0
        for p in reversed([p for p in module.parameters() if p.requires_grad]):
            group.append(p)
            size += p.numel() * p.element_size()
            if size > bucket_bytes:
                self.buckets.append(group)
                group, size = [], 0
        if group:
            self.buckets.append(group)
        self.flats = [torch.cat([torch.zeros_like(p).reshape(-1) for p in g]) for g in self.buckets]
        self.sync, self.next, self.works = True, 0, []
        self.left = [len(g) for g in self.buckets]
        for i, g in enumerate(self.buckets):
            start = 0
            for p in g:
                view = self.flats[i][start : start + p.numel()].view(p.shape)
                start += p.numel()
                p.register_post_accumulate_grad_hook(partial(self._arrived, i, view))

    def _arrived(self, i, view, p):
        if not self.sync:
            return
        view.copy_(p.grad)
        self.left[i] -= 1
        while self.next < len(self.buckets) and self.left[self.next] == 0:
            self._start()

    def _start(self):
        self.works.append(dist.all_reduce(self.flats[self.next], async_op=True))
        self.next += 1

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        if not self.sync:
            return
        while self.next < len(self.buckets):
            self._start()
        for g, flat, work in zip(self.buckets, self.flats, self.works, strict=True):
            work.wait()
            flat /= dist.get_world_size()
            for p, part in zip(g, flat.split([p.numel() for p in g]), strict=True):
                p.grad = part.view_as(p).clone()
        self.next, self.works = 0, []
        self.left = [len(g) for g in self.buckets]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.sync = False
        try:
            yield
        finally:
            self.sync = True
