"""``sharding.Zero2Optimizer``: as Zero1Optimizer, and each rank keeps its part of the gradients."""

import functools

import torch
import torch.distributed as dist

from multigpu.checking.declaration import exercise
from multigpu.checking.probes import noted_on_each_rank

from .sharded_training import PROMISE, allowed, as_plain_training, is_measured
from .volume import sends_at_most
from .wrong_steps import AllReduced, Flat, GathersGradients, Owners, every_optimizer

zero2 = exercise(
    "sharding.Zero2Optimizer",
    expects=PROMISE,
    share_of=lambda case: case.world,
)
FREED = (
    "when the inner optimizer steps, a rank has the gradients of its own elements only: at most"
    " {bound} of {total} elements, ⌈{total}/{n}⌉ = {share} and {largest} of the largest parameter"
)

as_plain_training(zero2)
every_optimizer.add_to(zero2)
on_a_rank = functools.partial(noted_on_each_rank, zero2, expects=FREED, first=False)


def views(notes, case):
    for step, held, shown, _ in notes["gradients"]:
        if held > case.bound >= shown:
            return f".grad has {shown} elements in step {step}, but is a view of {held}"
    return None


def too_many(notes, case):
    for step, held, _, in_model in notes["gradients"]:
        if held > case.bound:
            inner = f"{held - in_model} more in what the inner optimizer steps"
            return (
                f".grad of the model has {in_model} elements in step {step}, and there are {inner}"
            )
    return None


on_a_rank(
    "gradients_are_views",
    views,
    usually="a slice of a flat tensor keeps all of it alive.",
    fix="clone() the slice, or receive into a tensor of that size.",
)
on_a_rank(
    "gradients_not_freed",
    too_many,
    usually="gradients stay in .grad after they were reduced to their owners. Zeros take as much"
    " memory as numbers.",
    fix="Set .grad = None for what this rank does not own, before the inner step and not after it.",
)
# Counted are numbers that are new since backward began and that live in any tensor of Python's, but
# for the model's weights.  Each may be there twice: the sum, and the mean that was made of it.
on_a_rank(
    "gradients_kept_elsewhere",
    lambda notes, case: (
        notes["kept"] > 2 * case.bound and f"{notes['kept']} numbers of gradients lived in step 2"
    ),
    usually="a flat tensor, a list or a view still holds the gradients: a local variable and an"
    " attribute keep what they name.",
    fix="del it before the inner step, or copy your part out of it.",
)
sends_at_most(
    zero2,
    "gradients_to_everyone",
    lambda case: 1.5 * case.total if is_measured(case) else None,
    ops=("all_reduce",),
    expects="each gradient is reduced to its owner only, and a step sends at most 2 Ψ elements per"
    " rank, Ψ = {total}",
    usually="all_reduce gives the mean to every rank, and costs 2 Ψ.",
    fix="dist.reduce(p.grad, dst=owner) or dist.reduce_scatter gives it to the rank that steps with"
    " it.",
)
sends_at_most(
    zero2,
    "too_much_traffic",
    lambda case: allowed(case, 2) if is_measured(case) else None,
    expects="a step sends at most 2 Ψ elements per rank, Ψ = {total}",
    usually="something travels more than once, or to every rank: all_gather of gradients costs"
    " {n} Ψ, and an all-reduce of weights costs twice what a broadcast does.",
    fix="Reduce each gradient to its owner, and broadcast or all_gather the weights.",
)


@zero2.right
class whole_parameters(Owners):
    pass


@zero2.right
class one_flat_tensor(Flat):
    pass


# --- what breaks a property ----------------------------------------------------------------------


@zero2.breaks("gradients_not_freed")
class as_zero_1(AllReduced):
    pass


@zero2.breaks("gradients_to_everyone")
class all_reduces_and_frees(AllReduced):
    def reduce(self):
        super().reduce()
        for p in self.params:
            if self.owner[p] != dist.get_rank():
                p.grad = None


@zero2.breaks("gradients_are_views")
class a_slice_of_everything(Flat):
    def reduce(self):
        whole = self.gradients() / self.n
        for owner, part in enumerate(whole.split(self.length)):
            dist.reduce(part, dst=owner)
        self.mine.grad = whole[self.rank * self.length :][: self.length]


@zero2.breaks("gradients_kept_elsewhere")
class a_local_variable(Flat):
    def step(self):
        whole = self.gradients() / self.n
        self.mine.grad = torch.empty_like(self.mine)
        dist.reduce_scatter_tensor(self.mine.grad, whole)
        self.inner.step()
        dist.all_gather_into_tensor(self.flat, self.mine.data.clone())


@zero2.breaks("too_much_traffic")
class gathers_the_gradients_of_all(GathersGradients):
    def reduce(self):
        super().reduce()
        for p in self.params:
            if self.owner[p] != dist.get_rank():
                p.grad = None


@zero2.breaks("param_groups_missing")
class only_the_options_given_where_it_owns_nothing(Owners):
    def __init__(self, params, optimizer_class, **kwargs):
        super().__init__(params, optimizer_class, **kwargs)
        if self.inner is None:
            self.param_groups = [dict(kwargs, params=[])]
