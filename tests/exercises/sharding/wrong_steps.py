"""Steps that go wrong in the same way in Zero1Optimizer and in Zero2Optimizer."""

import torch
import torch.distributed as dist
from torch import nn

from multigpu.checking.declaration import Shared

every_optimizer = Shared()

# --- what answers are made of --------------------------------------------------------------------


class Owners:
    """A rank owns whole parameters: the largest go first, each to the rank with the fewest."""

    def __init__(self, params, optimizer_class, **kwargs):
        self.given, self.kind = list(params), optimizer_class
        self.params = [p for p in self.given if p.requires_grad]
        self.share_out(self.params)
        self.inner = self.make(**kwargs) if self.mine else None
        defaults = optimizer_class([torch.zeros(1)], **kwargs).defaults
        self.param_groups = self.inner.param_groups if self.inner else [{**defaults, "params": []}]

    def make(self, **kwargs):
        return self.kind(self.mine, **kwargs)

    def share_out(self, params):
        load, self.owner = [0] * dist.get_world_size(), {}
        for p in sorted(params, key=lambda p: -p.numel()):
            self.owner[p] = load.index(min(load))
            load[self.owner[p]] += p.numel()
        self.mine = [p for p in params if self.owner[p] == dist.get_rank()]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def reduce(self):
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.reduce(p.grad, dst=self.owner[p])
            p.grad = p.grad / dist.get_world_size() if self.owner[p] == dist.get_rank() else None

    def share(self):
        for p in self.params:
            dist.broadcast(p.data, src=self.owner[p])

    def step(self):
        self.reduce()
        if self.inner:
            self.inner.step()
        self.share()


class AllReduced(Owners):
    """Every rank gets all gradients, as in data parallelism."""

    def reduce(self):
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


class GathersGradients(Owners):
    """Right, but every rank gets the gradients of all ranks one by one."""

    def reduce(self):
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            grads = [torch.empty_like(p) for _ in range(dist.get_world_size())]
            dist.all_gather(grads, p.grad)
            p.grad = sum(grads) / dist.get_world_size()


class Flat:
    """All parameters are in one flat tensor, and a rank owns a slice of it."""

    def __init__(self, params, optimizer_class, **kwargs):
        self.params = [p for p in params if p.requires_grad]
        self.n, self.rank = dist.get_world_size(), dist.get_rank()
        self.length = -(-sum(p.numel() for p in self.params) // self.n)
        self.flat = self.params[0].new_zeros(self.length * self.n)
        at = 0
        for p in self.params:
            self.flat[at : at + p.numel()] = p.data.flatten()
            p.data = self.flat[at : at + p.numel()].view_as(p)
            at += p.numel()
        self.mine = nn.Parameter(self.flat[self.rank * self.length : (self.rank + 1) * self.length])
        self.inner = optimizer_class([self.mine], **kwargs)
        self.param_groups = self.inner.param_groups

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def gradients(self):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        whole = torch.cat([g.flatten() for g in grads])
        self.zero_grad()
        return torch.cat([whole, whole.new_zeros(self.length * self.n - len(whole))])

    def reduce(self):
        self.mine.grad = torch.empty_like(self.mine)
        dist.reduce_scatter_tensor(self.mine.grad, self.gradients() / self.n)

    def step(self):
        self.reduce()
        self.inner.step()
        dist.all_gather_into_tensor(self.flat, self.mine.data.clone())


# --- mistakes ------------------------------------------------------------------------------------


@every_optimizer.mistake(
    "summed",
    "the step was made with the sum of the gradients: reduce, reduce_scatter, all_reduce add up.",
    fix="Divide by dist.get_world_size(), which is {n} here.",
)
class sums(Owners):
    def reduce(self):
        super().reduce()
        for p in self.mine:
            p.grad *= dist.get_world_size()


@every_optimizer.mistake(
    "divided_twice",
    "the gradients were divided by {n} twice, for example before the sum and after it.",
    fix="Divide once.",
)
class divides_twice(Owners):
    def reduce(self):
        super().reduce()
        for p in self.mine:
            p.grad /= dist.get_world_size()


# The result depends on what a rank owns, so there are two programs.
OF_ONE_RANK = (
    "of_one_rank",
    "the owner stepped with its own gradients: they were not reduced, or the result was not put"
    " into .grad, or not waited for.",
)


@every_optimizer.mistake(*OF_ONE_RANK, fix="An owner steps with the mean over all ranks.")
class steps_with_its_own(Owners):
    def reduce(self):
        for p in self.params:
            if self.owner[p] != dist.get_rank():
                p.grad = None


@every_optimizer.mistake(*OF_ONE_RANK, fix="An owner steps with the mean over all ranks.")
class cuts_its_own(Flat):
    def reduce(self):
        self.mine.grad = self.gradients()[self.rank * self.length :][: self.length].clone()


@every_optimizer.mistake(
    "state_lost",
    "the step is that of a new optimizer. Momentum and averages are kept from step to step.",
    fix="Make the inner optimizer once, in __init__, and keep its parameters the same objects.",
)
class a_new_optimizer_for_each_step(Owners):
    def step(self):
        self.reduce()
        if self.mine:
            options = {k: v for k, v in self.param_groups[0].items() if k != "params"}
            self.inner = self.kind(self.mine, **options)
            self.inner.step()
        self.share()


@every_optimizer.mistake(
    "old_rate",
    "group['lr'] was set in param_groups, but the inner optimizer steps with its own rate.",
    fix="Hand out the inner optimizer's dicts, or copy the options into them before each step.",
)
class hands_out_a_copy_of_its_options(Owners):
    def __init__(self, params, optimizer_class, **kwargs):
        super().__init__(params, optimizer_class, **kwargs)
        self.param_groups = [dict(group) for group in self.param_groups]


@every_optimizer.mistake(
    "options_dropped",
    "options other than lr did not reach the inner optimizer.",
    fix="Pass all of them on: optimizer_class(mine, **kwargs).",
)
class passes_on_the_learning_rate(Owners):
    def make(self, **kwargs):
        return self.kind(self.mine, **{k: v for k, v in kwargs.items() if k == "lr"})


@every_optimizer.mistake(
    "frozen_moved",
    "a frozen parameter got a gradient of zeros, and weight decay of the inner optimizer moved it.",
    fix="Leave frozen parameters out.",
)
class frozen_ones_too(Owners):
    def share_out(self, params):
        self.params = self.given
        super().share_out(self.params)


@every_optimizer.mistake(
    "empty_list",
    "this rank owns nothing, and torch's optimizers refuse an empty list.",
    fix="Create no inner optimizer on this rank, but let it take part in reducing and sharing.",
    status="crash",
)
class an_optimizer_for_nothing(Owners):
    def __init__(self, params, optimizer_class, **kwargs):
        self.params = [p for p in params if p.requires_grad]
        self.share_out(self.params)
        self.inner = optimizer_class(self.mine, **kwargs)


@every_optimizer.mistake(
    "stays_away",
    "a rank that owns nothing left out the calls that the other ranks wait for.",
    fix="Skip only the inner step there. Every rank reduces gradients and shares weights.",
    status="mismatch",
)
class who_owns_nothing_stays_away(Owners):
    def step(self):
        if self.inner:
            super().step()


UNUSED = (
    "unused_out_of_step",
    "a gradient that is None was left out on one rank, while another rank waits for it.",
)


@every_optimizer.mistake(*UNUSED, fix="Send zeros in its place.", status="mismatch")
class skips_missing_gradients(Owners):
    def reduce(self):
        for p in self.params:
            if p.grad is not None:
                dist.reduce(p.grad, dst=self.owner[p])
                mine = self.owner[p] == dist.get_rank()
                p.grad = p.grad / dist.get_world_size() if mine else None
