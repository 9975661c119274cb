"""Answers to ``BucketedDDP`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from contextlib import contextmanager
from torch import nn
from exercises.distributed_data_parallel.BucketedDDP import Buckets


# %% flags_for_what_nobody_used: pass
class BucketedDDP(Buckets):
    """One more collective, of another type, so that unused parameters can stay None."""

    def sync_gradients(self):
        if self.quiet:
            return
        flags = torch.tensor([p.grad is not None for b in self.buckets for p in b]).int()
        super().sync_gradients()
        dist.all_reduce(flags)
        for p, flag in zip([p for b in self.buckets for p in b], flags.tolist()):
            if not flag:
                p.grad = None


# %% gradients_live_in_the_bucket: pass
class BucketedDDP(nn.Module):
    def __init__(self, module, bucket_bytes=25 * 2**20):
        super().__init__()
        self.module = module
        self.silent = False
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, src=0)
        self.flats, self.place, self.counts, self.handles = [], {}, [], []
        group = []
        for p in list(module.parameters())[::-1]:
            if p.requires_grad:
                group.append(p)
                if sum(q.numel() * q.element_size() for q in group) > bucket_bytes:
                    self.close(group)
                    group = []
        if group:
            self.close(group)
        self.begin()

    def close(self, group):
        flat = group[0].new_zeros(sum(p.numel() for p in group))
        start = 0
        for p in group:
            view = flat[start : start + p.numel()].view(p.shape)
            self.place[p] = (len(self.flats), view)
            start += p.numel()
            p.register_post_accumulate_grad_hook(self.arrived)
        self.flats.append(flat)
        self.counts.append(len(group))

    def begin(self):
        self.left = list(self.counts)
        self.here = set()
        self.handles = []

    def take(self, p):
        number, view = self.place[p]
        if p.grad is None:
            view.zero_()
        elif p.grad is not view:
            view.copy_(p.grad)
        p.grad = view
        self.left[number] -= 1
        self.here.add(p)

    def launch(self):
        while len(self.handles) < len(self.flats) and not self.left[len(self.handles)]:
            flat = self.flats[len(self.handles)]
            self.handles.append(dist.all_reduce(flat, async_op=True))

    def arrived(self, p):
        if not self.silent:
            self.take(p)
            self.launch()

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def sync_gradients(self):
        if self.silent:
            return
        for p in self.place:
            if p not in self.here:
                self.take(p)
        self.launch()
        for flat, handle in zip(self.flats, self.handles):
            handle.wait()
            flat.div_(dist.get_world_size())
        self.begin()

    @contextmanager
    def no_sync(self):
        self.silent, before = True, self.silent
        try:
            yield
        finally:
            self.silent = before


# %% a_share_in_float32: pass
class BucketedDDP(Buckets):
    """A quotient of whole-number tensors."""

    def begin(self, bucket):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([g.flatten() for g in grads]) * (1 / torch.tensor(dist.get_world_size()))
        self.sent.append((bucket, flat, dist.all_reduce(flat, async_op=True)))


# %% countdowns_go_on_after_an_unused_one: wrong wrong_values
class BucketedDDP(Buckets):
    """A countdown begins again only where its bucket became full."""

    def reset(self):
        super().reset()
        if not hasattr(self, "left"):
            self.left = [len(bucket) for bucket in self.buckets]

    def hook(self, p):
        if self.quiet:
            return
        (number,) = [i for i, bucket in enumerate(self.buckets) if any(p is q for q in bucket)]
        self.left[number] -= 1
        while self.next < len(self.buckets) and self.left[self.next] == 0:
            self.left[self.next] = len(self.buckets[self.next])
            self.begin(self.buckets[self.next])
            self.next += 1
