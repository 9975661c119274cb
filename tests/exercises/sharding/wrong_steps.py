"""Steps that go wrong in the same way in Zero1Optimizer and in Zero2Optimizer."""

import torch
import torch.distributed as dist
from torch import nn

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


# --- wrong ones ----------------------------------------------------------------------------------


class sums(Owners):
    def reduce(self):
        super().reduce()
        for p in self.mine:
            p.grad *= dist.get_world_size()


class divides_twice(Owners):
    def reduce(self):
        super().reduce()
        for p in self.mine:
            p.grad /= dist.get_world_size()


class steps_with_its_own(Owners):
    def reduce(self):
        for p in self.params:
            if self.owner[p] != dist.get_rank():
                p.grad = None


class cuts_its_own(Flat):
    def reduce(self):
        self.mine.grad = self.gradients()[self.rank * self.length :][: self.length].clone()


class divides_its_own(Owners):
    def reduce(self):
        for p in self.params:
            mine = self.owner[p] == dist.get_rank()
            p.grad = p.grad / dist.get_world_size() if mine and p.grad is not None else None


class cuts_and_divides_its_own(Flat):
    def reduce(self):
        own = self.gradients()[self.rank * self.length :][: self.length]
        self.mine.grad = own / self.n


class steps_twice(Owners):
    def step(self):
        self.reduce()
        if self.inner:
            self.inner.step()
            self.inner.step()
        self.share()


class a_new_optimizer_for_each_step(Owners):
    def step(self):
        self.reduce()
        if self.mine:
            options = {k: v for k, v in self.param_groups[0].items() if k != "params"}
            self.inner = self.kind(self.mine, **options)
            self.inner.step()
        self.share()


class hands_out_a_copy_of_its_options(Owners):
    def __init__(self, params, optimizer_class, **kwargs):
        super().__init__(params, optimizer_class, **kwargs)
        self.param_groups = [dict(group) for group in self.param_groups]


class passes_on_the_learning_rate(Owners):
    def make(self, **kwargs):
        return self.kind(self.mine, **{k: v for k, v in kwargs.items() if k == "lr"})


class adds_to_a_flat_tensor(Flat):
    def gradients(self):
        self.sum = getattr(self, "sum", 0) + super().gradients()
        return self.sum


class gathers_in_another_order(Flat):
    def step(self):
        self.reduce()
        self.inner.step()
        new = [torch.empty_like(self.mine) for _ in range(self.n)]
        dist.all_gather(new, self.mine.data)
        self.flat.copy_(torch.cat(new[::-1]))


class frozen_ones_too(Owners):
    def share_out(self, params):
        self.params = self.given
        super().share_out(self.params)


class begins_with_zeros(Flat):
    def __init__(self, params, optimizer_class, **kwargs):
        super().__init__(params, optimizer_class, **kwargs)
        self.flat.zero_()


class reduces_in_float32(Owners):
    def reduce(self):
        for p in self.params:
            sent = torch.zeros_like(p).float() if p.grad is None else p.grad.float()
            dist.reduce(sent, dst=self.owner[p])
            mine = self.owner[p] == dist.get_rank()
            p.grad = sent.to(p.dtype) / dist.get_world_size() if mine else None


class an_optimizer_for_nothing(Owners):
    def __init__(self, params, optimizer_class, **kwargs):
        self.params = [p for p in params if p.requires_grad]
        self.share_out(self.params)
        self.inner = optimizer_class(self.mine, **kwargs)


class who_owns_nothing_stays_away(Owners):
    def step(self):
        if self.inner:
            super().step()


class skips_missing_gradients(Owners):
    def reduce(self):
        for p in self.params:
            if p.grad is not None:
                dist.reduce(p.grad, dst=self.owner[p])
                mine = self.owner[p] == dist.get_rank()
                p.grad = p.grad / dist.get_world_size() if mine else None


UNUSED = (
    "unused_out_of_step",
    "a gradient is None where this rank did not use the parameter, and it was left out there, while"
    " another rank waits for it.",
)


def wrong_steps(exercise):
    """Declare them as mistakes of one of the two optimizers."""
    mistake = exercise.mistake
    mistake(
        "summed",
        "the step was made with the sum of the gradients: reduce, reduce_scatter and all_reduce add"
        " up.",
        fix="Divide by dist.get_world_size(), which is {n} here.",
    )(sums)
    mistake(
        "divided_twice",
        "the gradients were divided by {n} twice, for example before the sum and after it.",
        fix="Divide once.",
    )(divides_twice)
    own = (
        "of_one_rank",
        "the owner stepped with its own gradients: they were not reduced, or the result was not put"
        " into .grad, or not waited for.",
    )
    mistake(*own, fix="An owner steps with the mean over all ranks.")(steps_with_its_own)
    mistake(*own, fix="An owner steps with the mean over all ranks.")(cuts_its_own)
    divided = (
        "only_divided",
        "the owner stepped with its own gradients, divided by {n}: those of the other ranks are"
        " missing, because they were summed into a copy or never sent.",
    )
    mistake(*divided, fix="Put what was reduced into .grad.")(divides_its_own)
    mistake(*divided, fix="Put what was reduced into .grad.")(cuts_and_divides_its_own)
    mistake(
        "stepped_twice",
        "some elements made two steps at once: the inner optimizer steps in a loop, or a parameter"
        " is in two inner optimizers.",
        fix="Step every element once.",
    )(steps_twice)
    mistake(
        "state_lost",
        "the step is that of a new optimizer. Momentum and averages are kept from step to step.",
        fix="Make the inner optimizer once, in __init__, and keep its parameters the same objects.",
    )(a_new_optimizer_for_each_step)
    mistake(
        "old_rate",
        "group['lr'] was set in param_groups, but the inner optimizer steps with its own rate.",
        fix="Hand out the inner optimizer's dicts, or copy the options into them before each step.",
    )(hands_out_a_copy_of_its_options)
    mistake(
        "options_dropped",
        "options other than lr did not reach the inner optimizer.",
        fix="Pass all of them on: optimizer_class(mine, **kwargs).",
    )(passes_on_the_learning_rate)
    mistake(
        "older_gradients",
        "a flat tensor of yours still held the gradients of the step before, and new ones were"
        " added to them.",
        fix="Copy into it, or set it to zeros first.",
    )(adds_to_a_flat_tensor)
    mistake(
        "order_changed",
        "the slices came back in another order than the one in which the gradients were sent.",
        fix="Slice r of the gradients and slice r of the weights are the same elements.",
    )(gathers_in_another_order)
    mistake(
        "frozen_moved",
        "a frozen parameter (requires_grad=False) was given to the inner optimizer with a gradient"
        " of zeros, and weight decay moved it.",
        fix="Leave frozen parameters out.",
    )(frozen_ones_too)
    mistake(
        "start_changed",
        "the constructor changed the weights: the flat tensor got zeros.",
        fix="All ranks begin with equal weights, so copy them into the flat tensor.",
    )(begins_with_zeros)
    mistake(
        "rounded",
        "gradients or weights were sent or added up in a smaller dtype.",
        fix="Send them in the dtype that they have.",
    )(reduces_in_float32)
    mistake(
        "empty_list",
        "this rank owns nothing, and torch's optimizers refuse an empty list.",
        fix="Create no inner optimizer on this rank, but let it take part in reducing and sharing.",
        status="crash",
    )(an_optimizer_for_nothing)
    mistake(
        "stays_away",
        "a rank that owns nothing left out the calls that the other ranks wait for.",
        fix="Skip only the inner step there. Every rank reduces gradients and shares weights.",
        status="mismatch",
    )(who_owns_nothing_stays_away)
    mistake(*UNUSED, fix="Send zeros in its place.", status="mismatch")(skips_missing_gradients)
