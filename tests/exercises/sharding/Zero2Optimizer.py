"""``sharding.Zero2Optimizer``: as Zero1Optimizer, and each rank keeps its part of the gradients."""

from multigpu.checking.declaration import exercise

from .sharded_training import PROMISE, allowed, as_plain_training, is_measured, seen
from .volume import sends_at_most
from .wrong_steps import Flat, Owners, wrong_steps

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
wrong_steps(zero2)


@zero2.holds(
    "gradients_are_views",
    expects=FREED,
    usually="a slice of a flat tensor keeps all of it alive.",
    fix="clone() the slice, or receive into a tensor of that size.",
)
def small_storages(run, case):
    for rank, notes in enumerate(seen(run, case)):
        for step, held, shown, _ in notes["gradients"]:
            if held > case.bound >= shown:
                came = f"on rank {rank}, step {step}, .grad has {shown} elements"
                return f"{came}, but they are views of storages with {held}"
    return None


@zero2.holds(
    "gradients_not_freed",
    expects=FREED,
    usually="gradients stay in .grad after they were reduced to their owners. Zeros take as much"
    " memory as numbers.",
    fix="Set .grad = None for what this rank does not own, before the inner step and not after it.",
)
def few_gradients(run, case):
    for rank, notes in enumerate(seen(run, case)):
        for step, held, _, in_model in notes["gradients"]:
            if held > case.bound:
                more = held - in_model
                inner = f", and .grad of what the inner optimizer steps has {more} more"
                came = f".grad of the model's parameters has {in_model} elements"
                return f"on rank {rank}, step {step}, {came}{inner if more else ''}"
    return None


# Counted are numbers that are new since backward began and that live in any tensor of Python's, but
# for the model's weights.  Each may be there twice: the sum, and the mean that was made of it.
@zero2.holds(
    "gradients_kept_elsewhere",
    expects=FREED,
    usually="a flat tensor, a list or a view still holds the gradients: a local variable and an"
    " attribute keep what they name.",
    fix="del it before the inner step, or copy your part out of it.",
)
def nothing_else_lives(run, case):
    for rank, notes in enumerate(seen(run, case)):
        if notes["kept"] > 2 * case.bound:
            return f"on rank {rank}, step 2, {notes['kept']} numbers of gradients were still alive"
    return None


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
