# Style: unusual, no flat vector of its own: dist.all_reduce_coalesced on the list of gradients of a bucket, in place.
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
        self.buckets = [[]]
        for p in reversed([p for p in module.parameters() if p.requires_grad]):
            last = self.buckets[-1]
            held = sum(q.numel() * q.element_size() for q in last)
            fits = held + p.numel() * p.element_size() <= bucket_bytes
            if last and not (fits and last[0].dtype == p.dtype):
                self.buckets.append([])
            self.buckets[-1].append(p)
            p.register_post_accumulate_grad_hook(self.on_grad)
        if not self.buckets[0]:
            self.buckets = []
        self.enabled = True
        self.todo = list(self.buckets)
        self.seen = set()
        self.works = []

    def on_grad(self, p):
        if self.enabled:
            self.seen.add(p)
            while self.todo and self.seen.issuperset(self.todo[0]):
                self.send(self.todo.pop(0))

    def send(self, bucket):
        for p in bucket:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        self.works.append(dist.all_reduce_coalesced([p.grad for p in bucket], async_op=True))

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        if not self.enabled:
            return
        for bucket in self.todo:
            self.send(bucket)
        for work in self.works:
            work.wait()
        for bucket in self.buckets:
            for p in bucket:
                p.grad /= dist.get_world_size()
        self.todo, self.seen, self.works = list(self.buckets), set(), []

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        enabled, self.enabled = self.enabled, False
        try:
            yield
        finally:
            self.enabled = enabled
