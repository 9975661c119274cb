"""Answers to ``Zero1Optimizer`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from torch import nn
from exercises.sharding.wrong_steps import Owners


# %% made_at_the_first_step: pass
class Zero1Optimizer(Owners):
    """Options of its own on every rank, copied into the inner optimizer before each step."""

    def __init__(self, params, optimizer_class, **kwargs):
        self.params = [p for p in params if p.requires_grad]
        self.share_out(self.params)
        self.kind, self.inner, self.given = optimizer_class, None, kwargs
        defaults = optimizer_class([torch.zeros(1)], **kwargs).defaults
        self.param_groups = [{**defaults, "params": self.params}]

    def step(self):
        self.reduce()
        options = {k: v for k, v in self.param_groups[0].items() if k != "params"}
        if self.mine and self.inner is None:
            self.inner = self.kind(self.mine, **self.given)
        if self.inner:
            self.inner.param_groups[0].update(options)
            self.inner.step()
        self.share()


# %% an_optimizer_itself: pass
class Zero1Optimizer(torch.optim.Optimizer):
    """As ZeroRedundancyOptimizer: the wrapper is an optimizer with all parameters in its groups."""

    def __init__(self, params, optimizer_class, **kwargs):
        params = [p for p in params if p.requires_grad]
        super().__init__(params, optimizer_class([torch.zeros(1)], **kwargs).defaults)
        Owners.share_out(self, params)
        self.inner = optimizer_class(self.mine, **kwargs) if self.mine else None

    def step(self):
        for p in self.param_groups[0]["params"]:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
            p.grad /= dist.get_world_size()
        if self.inner:
            for name, value in self.param_groups[0].items():
                if name != "params":
                    self.inner.param_groups[0][name] = value
            self.inner.step()
        for p in self.param_groups[0]["params"]:
            dist.broadcast(p.data, self.owner[p])


# %% skips_what_nobody_used: pass
class Zero1Optimizer(Owners):
    """Exactly as the plain optimizer: no gradient on any rank, no step."""

    def reduce(self):
        used = torch.tensor([p.grad is not None for p in self.params]).int()
        dist.all_reduce(used)
        for p, count in zip(self.params, used.tolist()):
            if count:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                dist.reduce(p.grad, self.owner[p])
                p.grad /= dist.get_world_size()


# %% a_slice_of_every_parameter: pass
class Zero1Optimizer:
    """Each parameter is filled up to n equal parts, and every rank owns one part of each."""

    def __init__(self, params, optimizer_class, **kwargs):
        self.n, self.rank = dist.get_world_size(), dist.get_rank()
        self.params = [p for p in params if p.requires_grad]
        self.parts = [nn.Parameter(self.cut(p.data)[self.rank].clone()) for p in self.params]
        self.inner = optimizer_class(self.parts, **kwargs)
        self.param_groups = self.inner.param_groups

    def cut(self, tensor):
        flat = tensor.flatten()
        flat = torch.cat([flat, flat.new_zeros(-len(flat) % self.n)])
        return list(flat.chunk(self.n))

    def zero_grad(self):
        for p in [*self.params, *self.parts]:
            p.grad = None

    def step(self):
        for p, part in zip(self.params, self.parts):
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            part.grad = torch.empty_like(part)
            dist.reduce_scatter(part.grad, self.cut(grad / self.n))
        self.inner.step()
        for p, part in zip(self.params, self.parts):
            new = [torch.empty_like(part) for _ in range(self.n)]
            dist.all_gather(new, part.data)
            p.data.copy_(torch.cat(new)[: p.numel()].view_as(p))


# %% point_to_point: pass
class Zero1Optimizer(Owners):
    def reduce(self):
        n, rank = dist.get_world_size(), dist.get_rank()
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            if rank != self.owner[p]:
                dist.send(p.grad, dst=self.owner[p])
                continue
            for other in range(n):
                if other != rank:
                    arrived = torch.empty_like(p)
                    dist.recv(arrived, src=other)
                    p.grad += arrived
            p.grad /= n


# %% a_share_in_float32: pass
class Zero1Optimizer(Owners):
    """A quotient of whole-number tensors."""

    def reduce(self):
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad *= 1 / torch.tensor(dist.get_world_size())
            dist.reduce(p.grad, dst=self.owner[p])


# %% asks_pytorch: wrong refused_name
class Zero1Optimizer:
    def __init__(self, params, optimizer_class, **kwargs):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        self.inner = ZeroRedundancyOptimizer(params, optimizer_class, **kwargs)
