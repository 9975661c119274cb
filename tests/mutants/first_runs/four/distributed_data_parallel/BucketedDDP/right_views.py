# Style: long-lived flat buffers, .grad become views into them (as gradient_as_bucket_view), a Bucket class, buckets closed after overflow.
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn


class _Bucket:
    def __init__(self, params):
        self.params = params
        total = sum(p.numel() for p in params)
        self.flat = torch.zeros(total, dtype=params[0].dtype, device=params[0].device)
        pieces = self.flat.split([p.numel() for p in params])
        self.views = [piece.view(p.shape) for piece, p in zip(pieces, params, strict=True)]
        self.ready = set()
        self.work = None

    @property
    def full(self):
        return len(self.ready) == len(self.params)

    def start(self):
        for p, view in zip(self.params, self.views, strict=True):
            if p.grad is None:
                view.zero_()
            elif p.grad is not view and p.grad.data_ptr() != view.data_ptr():
                view.copy_(p.grad)
            p.grad = view
        self.flat.div_(dist.get_world_size())
        self.work = dist.all_reduce(self.flat, async_op=True)

    def finish(self):
        self.work.wait()
        self.work = None
        self.ready.clear()


class BucketedDDP(nn.Module):
    """Gradients live in the buckets."""

    def __init__(self, module: nn.Module, bucket_bytes: int = 25 * 2**20) -> None:
        super().__init__()
        self.module = module
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(tensor, 0)
        self._buckets = []
        self._next = 0
        self._quiet = 0
        # one open bucket for each dtype and device, as a vector has only one
        pending = {}
        for p in reversed(list(module.parameters())):
            if not p.requires_grad:
                continue
            group = pending.setdefault((p.dtype, p.device), [])
            group.append(p)
            if sum(q.numel() * q.element_size() for q in group) >= bucket_bytes:
                self._buckets.append(_Bucket(pending.pop((p.dtype, p.device))))
        self._buckets += map(_Bucket, pending.values())
        for bucket in self._buckets:
            for p in bucket.params:
                p.register_post_accumulate_grad_hook(self._hook_for(bucket))

    def _hook_for(self, bucket):
        def hook(p):
            if self._quiet == 0:
                bucket.ready.add(p)
                self._launch(only_full=True)

        return hook

    def _launch(self, only_full):
        for bucket in self._buckets[self._next :]:
            if only_full and not bucket.full:
                break
            bucket.start()
            self._next += 1

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self) -> None:
        if self._quiet:
            return
        self._launch(only_full=False)
        for bucket in self._buckets:
            bucket.finish()
        self._next = 0

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1
