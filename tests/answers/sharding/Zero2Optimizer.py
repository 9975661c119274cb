"""Answers to ``Zero2Optimizer`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from torch import nn
from exercises.sharding.wrong_steps import Flat, Owners


# %% handles: pass
class Zero2Optimizer(Owners):
    """They are kept until the end of the step: only what they are about has to be gone."""

    def step(self):
        started = []
        for p in self.params:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad / dist.get_world_size()
            started.append(dist.reduce(p.grad, self.owner[p], async_op=True))
        for handle in started:
            handle.wait()
        for p in self.params:
            if self.owner[p] != dist.get_rank():
                p.grad = None
        if self.inner:
            self.inner.step()
        for handle in [dist.broadcast(p.data, self.owner[p], async_op=True) for p in self.params]:
            handle.wait()


# %% an_optimizer_for_each_parameter: pass
class Zero2Optimizer(Owners):
    inners = ()

    def make(self, **kwargs):
        self.inners = [self.kind([p], **kwargs) for p in self.mine]
        return self.inners[0]

    def step(self):
        self.reduce()
        for inner in self.inners:
            inner.param_groups[0]["lr"] = self.param_groups[0]["lr"]
            inner.step()
        self.share()


# %% copies_of_weights: pass
class Zero2Optimizer(Flat):
    """The model keeps its own weights; a slice of them is copied, stepped and copied back."""

    def __init__(self, params, optimizer_class, **kwargs):
        self.params = [p for p in params if p.requires_grad]
        self.n, self.rank = dist.get_world_size(), dist.get_rank()
        total = sum(p.numel() for p in self.params)
        self.length = -(-total // self.n)
        whole = torch.cat([p.data.flatten() for p in self.params] + [self.filling()])
        self.mine = nn.Parameter(whole[self.rank * self.length :][: self.length].clone())
        self.inner = optimizer_class([self.mine], **kwargs)
        self.param_groups = self.inner.param_groups

    def filling(self):
        total = sum(p.numel() for p in self.params)
        return self.params[0].data.new_zeros(-total % self.n if total > self.n else self.n - total)

    def step(self):
        self.reduce()
        whole = torch.cat([p.data.flatten() for p in self.params] + [self.filling()])
        self.inner.step()
        dist.all_gather(list(whole.split(self.length)), self.mine.data)
        at = 0
        for p in self.params:
            p.data.copy_(whole[at : at + p.numel()].view_as(p))
            at += p.numel()


# %% padded_blocks: pass
class Zero2Optimizer(Owners):
    """Whole parameters; all ranks' parts are filled up to the longest one."""

    def __init__(self, params, optimizer_class, **kwargs):
        super().__init__(params, optimizer_class, **kwargs)
        n = dist.get_world_size()
        self.blocks = [[p for p in self.params if self.owner[p] == r] for r in range(n)]
        self.longest = max(sum(p.numel() for p in block) for block in self.blocks)

    def rows(self, tensors_of):
        rows = []
        for block in self.blocks:
            flat = torch.cat([t.flatten() for t in map(tensors_of, block)] or [self.none()])
            rows.append(torch.cat([flat, flat.new_zeros(self.longest - len(flat))]))
        return rows

    def none(self):
        return self.params[0].data.new_zeros(0)

    def put(self, block, row, setter):
        at = 0
        for p in block:
            setter(p, row[at : at + p.numel()].view_as(p).clone())
            at += p.numel()

    def reduce(self):
        rows = self.rows(lambda p: torch.zeros_like(p) if p.grad is None else p.grad)
        row = torch.empty_like(rows[0])
        dist.reduce_scatter(row, rows)
        self.zero_grad()
        self.put(self.mine, row / dist.get_world_size(), lambda p, new: setattr(p, "grad", new))

    def share(self):
        rows = [self.params[0].data.new_zeros(self.longest) for _ in self.blocks]
        dist.all_gather(rows, self.rows(lambda p: p.data)[dist.get_rank()])
        for block, row in zip(self.blocks, rows):
            self.put(block, row, lambda p, new: p.data.copy_(new))


# %% six_sliced_each: pass
# style: slices of each parameter by itself


class Zero2Optimizer:
    """One shard per parameter: every parameter is cut into n pieces."""

    def __init__(self, params, optimizer_class, **kwargs):
        self.n, rank = dist.get_world_size(), dist.get_rank()
        self.params = [p for p in params if p.requires_grad]
        self.shards = []
        for p in self.params:
            length = -(-p.numel() // self.n)
            padded = p.detach().new_zeros(length * self.n)
            padded[: p.numel()] = p.detach().reshape(-1)
            self.shards.append(nn.Parameter(padded[rank * length : (rank + 1) * length].clone()))
        self.inner = optimizer_class(self.shards, **kwargs)
        self.param_groups = self.inner.param_groups

    def zero_grad(self):
        for p in [*self.params, *self.shards]:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p, shard in zip(self.params, self.shards):
            length = shard.numel()
            padded = shard.new_zeros(length * self.n)
            if p.grad is not None:  # copied and freed
                padded[: p.numel()] = p.grad.reshape(-1)
                p.grad = None
            shard.grad = torch.empty_like(shard)
            dist.reduce_scatter(shard.grad, list(padded.split(length)))
            shard.grad.div_(self.n)
            del padded
        self.inner.step()
        for p, shard in zip(self.params, self.shards):
            padded = shard.new_empty(shard.numel() * self.n)
            dist.all_gather(list(padded.split(shard.numel())), shard.detach())
            p.copy_(padded[: p.numel()].view_as(p))
