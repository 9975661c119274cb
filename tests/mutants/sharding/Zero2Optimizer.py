"""Answers to ``Zero2Optimizer``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from harness import right, wrong
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
            if self.owner[p] == dist.get_rank():
                p.grad /= dist.get_world_size()
            else:
                p.grad = None

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
        for p in self.params:
            p.grad = None
        return torch.cat([whole, whole.new_zeros(self.length * self.n - len(whole))]) / self.n

    def reduce(self):
        self.mine.grad = torch.empty_like(self.mine)
        dist.reduce_scatter_tensor(self.mine.grad, self.gradients())

    def step(self):
        self.reduce()
        self.inner.step()
        dist.all_gather_into_tensor(self.flat, self.mine.data.clone())


@wrong("Zero2Optimizer.state_unbalanced")
class as_many_parameters_for_each(Owners):
    """The list of parameters in n pieces of one length: the front has the large ones."""

    def __init__(self, params, optimizer_class, **kwargs):
        self.params = [p for p in params if p.requires_grad]
        n, count = dist.get_world_size(), len(self.params)
        self.owner = {p: i * n // count for i, p in enumerate(self.params)}
        mine = [p for p in self.params if self.owner[p] == dist.get_rank()]
        self.inner = optimizer_class(mine, **kwargs) if mine else None
        self.param_groups = (
            self.inner.param_groups if self.inner else groups_without(optimizer_class, kwargs)
        )


@wrong("Zero2Optimizer.gradients_to_everyone")
class all_reduces_and_frees(Owners):
    def reduce(self):
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad = p.grad / dist.get_world_size() if self.owner[p] == dist.get_rank() else None


@wrong("Zero2Optimizer.gradients_to_everyone")
class all_reduces_one_flat_tensor(Flat):
    def reduce(self):
        whole = self.gradients()
        dist.all_reduce(whole)
        self.mine.grad = whole[self.rank * self.length :][: self.length].clone()


@wrong("Zero2Optimizer.too_much_traffic")
class gathers_the_gradients_of_all(Owners):
    def reduce(self):
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            all_of_it = [torch.empty_like(p) for _ in range(dist.get_world_size())]
            dist.all_gather(all_of_it, p.grad)
            mine = self.owner[p] == dist.get_rank()
            p.grad = sum(all_of_it) / dist.get_world_size() if mine else None


@wrong("Zero2Optimizer.gradients_not_freed")
class as_zero_1(Owners):
    def reduce(self):
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.reduce(p.grad, dst=self.owner[p])
            p.grad /= dist.get_world_size()


@wrong("Zero2Optimizer.gradients_not_freed")
class fills_with_zeros(Owners):
    def reduce(self):
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.reduce(p.grad, dst=self.owner[p])
            p.grad /= dist.get_world_size()
            if self.owner[p] != dist.get_rank():
                p.grad.zero_()


@wrong("Zero2Optimizer.gradients_not_freed")
class frees_after_the_step(Flat):
    def step(self):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        whole = torch.cat([g.flatten() for g in grads])
        whole = torch.cat([whole, whole.new_zeros(self.length * self.n - len(whole))]) / self.n
        self.mine.grad = torch.empty_like(self.mine)
        dist.reduce_scatter_tensor(self.mine.grad, whole)
        del whole, grads
        self.inner.step()
        self.zero_grad()
        dist.all_gather_into_tensor(self.flat, self.mine.data.clone())


@wrong("Zero2Optimizer.gradients_not_freed")
class steps_one_after_another(Owners):
    """The first inner optimizer steps while the gradients of the others are still there."""

    def __init__(self, params, optimizer_class, **kwargs):
        self.params = [p for p in params if p.requires_grad]
        self.owner = owners_of(self.params)
        mine = [p for p in self.params if self.owner[p] == dist.get_rank()]
        self.inners = {p: optimizer_class([p], **kwargs) for p in mine}
        self.param_groups = groups_without(optimizer_class, kwargs)

    def step(self):
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.reduce(p.grad, self.owner[p])
            if p in self.inners:
                p.grad /= dist.get_world_size()
                self.inners[p].param_groups[0]["lr"] = self.param_groups[0]["lr"]
                self.inners[p].step()
            p.grad = None
            dist.broadcast(p.data, self.owner[p])


@wrong("Zero2Optimizer.gradients_are_views")
class a_slice_of_everything(Flat):
    def reduce(self):
        whole = self.gradients()
        for owner, part in enumerate(whole.split(self.length)):
            dist.reduce(part, dst=owner)
        self.mine.grad = whole[self.rank * self.length :][: self.length]


@wrong("Zero2Optimizer.gradients_kept_elsewhere")
class a_local_variable(Flat):
    def step(self):
        whole = self.gradients()
        self.mine.grad = torch.empty_like(self.mine)
        dist.reduce_scatter_tensor(self.mine.grad, whole)
        self.inner.step()
        dist.all_gather_into_tensor(self.flat, self.mine.data.clone())


@wrong("Zero2Optimizer.gradients_kept_elsewhere")
class a_list_of_gradients(Owners):
    def step(self):
        grads = []
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            grads.append(p.grad)
            dist.reduce(p.grad, dst=self.owner[p])
            p.grad = p.grad / dist.get_world_size() if self.owner[p] == dist.get_rank() else None
        if self.inner:
            self.inner.step()
        self.share()


@wrong("Zero2Optimizer.gradients_kept_elsewhere")
class a_buffer_for_every_step(Flat):
    def __init__(self, params, optimizer_class, **kwargs):
        super().__init__(params, optimizer_class, **kwargs)
        self.buffer = torch.zeros_like(self.flat)

    def reduce(self):
        self.buffer.copy_(self.gradients())
        self.mine.grad = torch.empty_like(self.mine)
        dist.reduce_scatter_tensor(self.mine.grad, self.buffer)


@wrong("Zero2Optimizer.state_not_sharded")
class shards_gradients_only(Owners):
    """Zeros for the gradients of the others: the owner's weights come over in the end."""

    def __init__(self, params, optimizer_class, **kwargs):
        super().__init__(params, optimizer_class, **kwargs)
        self.inner = optimizer_class(self.params, **kwargs)
        self.param_groups = self.inner.param_groups

    def step(self):
        self.reduce()
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        self.inner.step()
        self.share()


@wrong("Zero2Optimizer.state_unbalanced")
class rank_0_owns_everything(Owners):
    def __init__(self, params, optimizer_class, **kwargs):
        self.params = [p for p in params if p.requires_grad]
        self.owner = {p: 0 for p in self.params}
        self.inner = optimizer_class(self.params, **kwargs) if dist.get_rank() == 0 else None
        self.param_groups = (
            self.inner.param_groups if self.inner else groups_without(optimizer_class, kwargs)
        )


@wrong("Zero2Optimizer.of_one_rank")
class frees_without_reducing(Owners):
    def reduce(self):
        for p in self.params:
            if self.owner[p] != dist.get_rank():
                p.grad = None


@wrong("Zero2Optimizer.weights_not_shared")
class keeps_its_weights(Owners):
    def share(self):
        pass


@wrong("refused_name")
class asks_pytorch:
    def __init__(self, params, optimizer_class, **kwargs):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        self.inner = ZeroRedundancyOptimizer(params, optimizer_class, **kwargs)


@wrong("Zero2Optimizer.param_groups_missing")
class only_the_options_given_where_it_owns_nothing(Owners):
    def __init__(self, params, optimizer_class, **kwargs):
        super().__init__(params, optimizer_class, **kwargs)
        if self.inner is None:
            self.param_groups = [dict(kwargs, params=[])]


@right
class handles(Owners):
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


@right
class an_optimizer_for_each_parameter(Owners):
    def __init__(self, params, optimizer_class, **kwargs):
        self.params = [p for p in params if p.requires_grad]
        self.owner = owners_of(self.params)
        mine = [p for p in self.params if self.owner[p] == dist.get_rank()]
        self.inners = [optimizer_class([p], **kwargs) for p in mine]
        self.param_groups = groups_without(optimizer_class, kwargs)

    def step(self):
        self.reduce()
        for inner in self.inners:
            inner.param_groups[0]["lr"] = self.param_groups[0]["lr"]
            inner.step()
        self.share()


@right
class copies_of_weights(Flat):
    """The model keeps its own weights; a slice of them is copied, stepped and copied back."""

    def __init__(self, params, optimizer_class, **kwargs):
        self.params = [p for p in params if p.requires_grad]
        self.n, self.rank = dist.get_world_size(), dist.get_rank()
        total = sum(p.numel() for p in self.params)
        self.length = -(-total // self.n)
        whole = torch.cat([p.data.flatten() for p in self.params] + [self.filling()])
        self.mine = nn.Parameter(whole[self.rank * self.length :][: self.length].clone())
        self.inner = optimizer_class([self.mine], **kwargs)

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


@right
class padded_blocks(Owners):
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
