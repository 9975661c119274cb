"""``sharding.Zero1Optimizer``: plain training, and each rank keeps its part of the state."""

import torch
import torch.distributed as dist

from multigpu.checking.declaration import exercise

from .sharded_training import PROMISE, allowed, as_plain_training, is_measured, most_sent
from .volume import sends_at_most
from .wrong_steps import UNUSED, Flat, Owners, wrong_steps

zero1 = exercise(
    "sharding.Zero1Optimizer",
    expects=PROMISE,
    share_of=lambda case: case.world,
)

as_plain_training(zero1)
wrong_steps(zero1)

sends_at_most(
    zero1,
    "too_much_traffic",
    lambda case: allowed(case, 3) if is_measured(case) else None,
    expects="a step sends at most 3 Ψ elements per rank, Ψ = {total}",
    usually="something travels more than once, or to every rank: all_gather of gradients costs"
    " {n} Ψ, and an all-reduce of weights costs twice what a broadcast does.",
    fix="Reduce the gradients, and broadcast or all_gather the weights.",
)


@zero1.remark
def less_is_possible(run, case):
    if not is_measured(case) or most_sent(run, case) <= allowed(case, 2):
        return None
    return (
        f"Zero1Optimizer: {case.world} ranks send {most_sent(run, case) / case.total:.1f} Ψ"
        f" elements per rank and step (Ψ = {case.total}). 2 Ψ is possible: an all-reduce brings"
        " every gradient to every rank, and only its owner needs it. Use reduce or reduce_scatter,"
        " then broadcast or all_gather."
    )


@zero1.right
class whole_parameters(Owners):
    pass


@zero1.right
class one_flat_tensor(Flat):
    pass


@zero1.right
class all_reduce_and_broadcast(Owners):
    def reduce(self):
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad.div_(dist.get_world_size())


@zero1.mistake(*UNUSED, fix="Send zeros in its place.", status="mismatch")
class all_reduces_what_is_there(Owners):
    def reduce(self):
        for p in self.params:
            if p.grad is not None:
                dist.all_reduce(p.grad)
                mine = self.owner[p] == dist.get_rank()
                p.grad = p.grad / dist.get_world_size() if mine else None
