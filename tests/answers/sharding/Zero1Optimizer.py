"""Answers to ``Zero1Optimizer`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from torch import nn


def owners_of(params):
    """The rank of each parameter: the largest first, each to who has the least so far."""
    load, owner = [0] * dist.get_world_size(), {}
    for p in sorted(params, key=lambda p: -p.numel()):
        owner[p] = load.index(min(load))
        load[owner[p]] += p.numel()
    return owner


def groups_without(optimizer_class, kwargs):
    """The param_groups of a rank that owns nothing."""
    return [{**optimizer_class([torch.zeros(1)], **kwargs).defaults, "params": []}]


class Owners:
    """What most of these answers have in common: a rank owns whole parameters."""

    def __init__(self, params, optimizer_class, **kwargs):
        self.params = [p for p in params if p.requires_grad]
        self.owner = owners_of(self.params)
        self.mine = [p for p in self.params if self.owner[p] == dist.get_rank()]
        self.inner = optimizer_class(self.mine, **kwargs) if self.mine else None
        self.param_groups = (
            self.inner.param_groups if self.inner else groups_without(optimizer_class, kwargs)
        )

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def reduce(self):
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.reduce(p.grad, dst=self.owner[p])
            p.grad /= dist.get_world_size()

    def share(self):
        for p in self.params:
            dist.broadcast(p.data, src=self.owner[p])

    def step(self):
        self.reduce()
        if self.inner:
            self.inner.step()
        self.share()


class Flat:
    """What others have in common: all parameters in one flat tensor, a slice per rank."""

    def __init__(self, params, optimizer_class, **kwargs):
        self.params = [p for p in params if p.requires_grad]
        self.n, self.rank = dist.get_world_size(), dist.get_rank()
        total = sum(p.numel() for p in self.params)
        self.length = (total + self.n - 1) // self.n
        self.flat = self.params[0].new_zeros(self.length * self.n)
        at = 0
        for p in self.params:
            self.flat[at : at + p.numel()] = p.data.flatten()
            p.data = self.flat[at : at + p.numel()].view_as(p)
            at += p.numel()
        self.mine = nn.Parameter(self.flat[self.rank * self.length : (self.rank + 1) * self.length])
        self.inner = optimizer_class([self.mine], **kwargs)

    @property
    def param_groups(self):
        return self.inner.param_groups

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def gradients(self):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        whole = torch.cat([g.flatten() for g in grads])
        return torch.cat([whole, whole.new_zeros(self.length * self.n - len(whole))])

    def step(self):
        self.mine.grad = torch.empty_like(self.mine)
        dist.reduce_scatter_tensor(self.mine.grad, self.gradients() / self.n)
        self.inner.step()
        dist.all_gather_into_tensor(self.flat, self.mine.data.clone())


class Unsharded:
    """An optimizer for everything on every rank."""

    def __init__(self, params, optimizer_class, **kwargs):
        self.params = [p for p in params if p.requires_grad]
        self.inner = optimizer_class(self.params, **kwargs)
        self.param_groups = self.inner.param_groups

    def zero_grad(self):
        self.inner.zero_grad()

    def average(self):
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()

    def step(self):
        self.average()
        self.inner.step()


# %% handles: pass


class Zero1Optimizer(Owners):
    def step(self):
        started = []
        for p in self.params:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad / dist.get_world_size()
            started.append(dist.reduce(p.grad, self.owner[p], async_op=True))
        for handle in started:
            handle.wait()
        if self.inner:
            self.inner.step()
        for handle in [dist.broadcast(p.data, self.owner[p], async_op=True) for p in self.params]:
            handle.wait()


# %% made_at_the_first_step: pass


class Zero1Optimizer(Owners):
    """Options of its own on every rank, copied into the inner optimizer before each step."""

    def __init__(self, params, optimizer_class, **kwargs):
        self.params = [p for p in params if p.requires_grad]
        self.owner = owners_of(self.params)
        self.kind, self.inner, self.given = optimizer_class, None, kwargs
        defaults = optimizer_class([torch.zeros(1)], **kwargs).defaults
        self.param_groups = [{**defaults, "params": self.params}]

    def step(self):
        self.reduce()
        mine = [p for p in self.params if self.owner[p] == dist.get_rank()]
        options = {k: v for k, v in self.param_groups[0].items() if k != "params"}
        if mine and self.inner is None:
            self.inner = self.kind(mine, **self.given)
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
        self.owner = owners_of(params)
        mine = [p for p in params if self.owner[p] == dist.get_rank()]
        self.inner = optimizer_class(mine, **kwargs) if mine else None
        if self.inner:
            self.state = self.inner.state

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


# %% six_flat_slices: pass

# style: one flat tensor, a slice of it for each rank


class Zero1Optimizer:
    def __init__(self, params, optimizer_class, **kwargs):
        self.rank, self.n = dist.get_rank(), dist.get_world_size()
        self.params = [p for p in params if p.requires_grad]
        total = sum(p.numel() for p in self.params)
        self.length = max(1, -(-total // self.n))
        first = self.params[0]
        self.flat = torch.zeros(self.length * self.n, dtype=first.dtype, device=first.device)
        at = 0
        for p in self.params:
            self.flat[at : at + p.numel()] = p.detach().flatten()
            p.data = self.flat[at : at + p.numel()].view(p.shape)
            at += p.numel()
        self.shard = nn.Parameter(
            self.flat[self.rank * self.length : (self.rank + 1) * self.length]
        )
        self.inner = optimizer_class([self.shard], **kwargs)

    @property
    def param_groups(self):
        return self.inner.param_groups

    def zero_grad(self):
        for p in self.params:
            p.grad = None
        self.shard.grad = None

    def step(self):
        whole, at = torch.zeros_like(self.flat), 0
        for p in self.params:
            if p.grad is not None:
                whole[at : at + p.numel()] = p.grad.flatten()
            at += p.numel()
        mean = torch.empty_like(self.shard.detach())
        dist.reduce_scatter(mean, list(whole.split(self.length)))
        self.shard.grad = mean / self.n
        self.inner.step()
        dist.all_gather(list(self.flat.split(self.length)), self.shard.detach().clone())


# %% six_sliced_each: pass

# style: slices of each parameter by itself


class Zero1Optimizer:
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
            if p.grad is not None:
                padded[: p.numel()] = p.grad.reshape(-1)
            shard.grad = torch.empty_like(shard)
            dist.reduce_scatter(shard.grad, list(padded.split(length)))
            shard.grad.div_(self.n)
        self.inner.step()
        for p, shard in zip(self.params, self.shards):
            padded = shard.new_empty(shard.numel() * self.n)
            dist.all_gather(list(padded.split(shard.numel())), shard.detach())
            p.copy_(padded[: p.numel()].view_as(p))


# %% data_parallel: wrong Zero1Optimizer.state_not_sharded


class Zero1Optimizer(Unsharded):
    pass


# %% makes_all_state_and_deletes_it: wrong Zero1Optimizer.state_for_a_while


class Zero1Optimizer(Unsharded):
    def step(self):
        self.average()
        owner = owners_of(self.params)
        self.inner.step()
        for p in self.params:
            dist.broadcast(p.data, src=owner[p])
            if owner[p] != dist.get_rank():
                del self.inner.state[p]


# %% rank_0_owns_everything: wrong Zero1Optimizer.state_unbalanced


class Zero1Optimizer(Owners):
    def __init__(self, params, optimizer_class, **kwargs):
        self.params = [p for p in params if p.requires_grad]
        self.owner = {p: 0 for p in self.params}
        self.inner = optimizer_class(self.params, **kwargs) if dist.get_rank() == 0 else None
        self.param_groups = (
            self.inner.param_groups if self.inner else groups_without(optimizer_class, kwargs)
        )


# %% state_in_one_flat_tensor: wrong Zero1Optimizer.state_is_a_view


class Zero1Optimizer(Flat):
    def step(self):
        super().step()
        for own in self.inner.state.values():
            for name, value in own.items():
                if torch.is_tensor(value) and value.numel() > 1:
                    whole = torch.zeros_like(self.flat)
                    whole[: value.numel()] = value.flatten()
                    own[name] = whole[: value.numel()].view_as(value)


# %% keeps_its_weights: wrong Zero1Optimizer.weights_not_shared


class Zero1Optimizer(Owners):
    def share(self):
        pass


# %% does_not_wait: wrong Zero1Optimizer.not_waited


class Zero1Optimizer(Owners):
    def share(self):
        for p in self.params:
            dist.broadcast(p.data, src=self.owner[p], async_op=True)


# %% has_no_groups: wrong Zero1Optimizer.param_groups_missing


class Zero1Optimizer(Owners):
    def __init__(self, params, optimizer_class, **kwargs):
        super().__init__(params, optimizer_class, **kwargs)
        del self.param_groups


# %% clears_nothing: wrong Zero1Optimizer.not_cleared


class Zero1Optimizer(Owners):
    def zero_grad(self):
        pass


# %% rounds_down: wrong Zero1Optimizer.not_stepped


class Zero1Optimizer(Flat):
    def __init__(self, params, optimizer_class, **kwargs):
        self.params = [p for p in params if p.requires_grad]
        self.n, self.rank = dist.get_world_size(), dist.get_rank()
        self.total = sum(p.numel() for p in self.params)
        self.length = max(1, self.total // self.n)
        self.flat = self.params[0].new_zeros(max(self.total, self.length * self.n))
        at = 0
        for p in self.params:
            self.flat[at : at + p.numel()] = p.data.flatten()
            p.data = self.flat[at : at + p.numel()].view_as(p)
            at += p.numel()
        self.mine = nn.Parameter(self.flat[self.rank * self.length : (self.rank + 1) * self.length])
        self.inner = optimizer_class([self.mine], **kwargs)

    def step(self):
        end = self.length * self.n
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        whole = torch.cat([g.flatten() for g in grads] + [self.flat.new_zeros(self.n)])[:end]
        self.mine.grad = torch.empty_like(self.mine)
        dist.reduce_scatter(self.mine.grad, list((whole / self.n).split(self.length)))
        self.inner.step()
        dist.all_gather(list(self.flat[:end].split(self.length)), self.mine.data)


# %% gathers_the_gradients_of_all: wrong Zero1Optimizer.too_much_traffic


class Zero1Optimizer(Owners):
    def reduce(self):
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            all_of_it = [torch.empty_like(p) for _ in range(dist.get_world_size())]
            dist.all_gather(all_of_it, p.grad)
            p.grad = sum(all_of_it) / dist.get_world_size()


# %% sgd_by_hand: wrong Zero1Optimizer.inner_not_used


class Zero1Optimizer(Owners):
    def __init__(self, params, optimizer_class, **kwargs):
        self.params = [p for p in params if p.requires_grad]
        self.owner = owners_of(self.params)
        self.param_groups, self.momentum = groups_without(optimizer_class, kwargs), {}

    def step(self):
        self.reduce()
        options = self.param_groups[0]
        for p in self.params:
            if self.owner[p] == dist.get_rank():
                grad = p.grad + options.get("weight_decay", 0) * p.data
                self.momentum[p] = options.get("momentum", 0) * self.momentum.get(p, 0) + grad
                p.data -= options["lr"] * self.momentum[p]
        self.share()


# %% asks_pytorch: wrong refused_name


class Zero1Optimizer:
    def __init__(self, params, optimizer_class, **kwargs):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        self.inner = ZeroRedundancyOptimizer(params, optimizer_class, **kwargs)
