"""``sharding.Zero1Optimizer``: plain training, and each rank keeps its part of the state."""

import torch
import torch.distributed as dist
from torch import nn

from multigpu.checking.declaration import exercise

from .sharded_training import PROMISE, allowed, as_plain_training, is_measured, most_sent
from .volume import sends_at_most
from .wrong_steps import UNUSED, AllReduced, Flat, GathersGradients, Owners, every_optimizer

zero1 = exercise(
    "sharding.Zero1Optimizer",
    expects=PROMISE,
    share_of=lambda case: case.world,
)

as_plain_training(zero1)
every_optimizer.add_to(zero1)

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
class all_reduce_and_broadcast(AllReduced):
    pass


@zero1.mistake(*UNUSED, fix="Send zeros in its place.", status="mismatch")
class all_reduces_what_is_there(Owners):
    def reduce(self):
        for p in self.params:
            if p.grad is not None:
                dist.all_reduce(p.grad)
                mine = self.owner[p] == dist.get_rank()
                p.grad = p.grad / dist.get_world_size() if mine else None


# --- what breaks a property ----------------------------------------------------------------------


class Unsharded(AllReduced):
    """An optimizer for everything on every rank."""

    def share_out(self, params):
        super().share_out(params)
        self.mine = params


@zero1.breaks("state_not_sharded")
class as_in_data_parallel(Unsharded):
    pass


@zero1.breaks("state_not_sharded")
class makes_all_state_and_deletes_it(Unsharded):
    def share(self):
        super().share()
        for p in self.params:
            if self.owner[p] != dist.get_rank():
                del self.inner.state[p]


@zero1.breaks("state_not_sharded")
class as_many_parameters_for_each(Owners):
    """The list of parameters in n pieces of one length: the front has the large ones."""

    def share_out(self, params):
        n, count = dist.get_world_size(), len(params)
        self.owner = {p: i * n // count for i, p in enumerate(params)}
        self.mine = [p for p in params if self.owner[p] == dist.get_rank()]


@zero1.breaks("state_not_sharded")
class state_in_one_flat_tensor(Flat):
    def step(self):
        super().step()
        for own in self.inner.state.values():
            for name, value in own.items():
                if torch.is_tensor(value) and value.numel() > 1:
                    whole = torch.zeros_like(self.flat)
                    whole[: value.numel()] = value.flatten()
                    own[name] = whole[: value.numel()].view_as(value)


@zero1.breaks("not_stepped")
class keeps_its_weights(Owners):
    def share(self):
        pass


@zero1.breaks("not_waited")
class does_not_wait(Owners):
    def share(self):
        for p in self.params:
            dist.broadcast(p.data, src=self.owner[p], async_op=True)


@zero1.breaks("param_groups_missing")
class has_no_groups(Owners):
    def __init__(self, params, optimizer_class, **kwargs):
        super().__init__(params, optimizer_class, **kwargs)
        del self.param_groups


@zero1.breaks("not_cleared")
class clears_nothing(Owners):
    def zero_grad(self):
        pass


@zero1.breaks("not_stepped")
class steps_copies(Owners):
    def make(self, **kwargs):
        self.copies = [nn.Parameter(p.detach().clone()) for p in self.mine]
        return self.kind(self.copies, **kwargs)

    def reduce(self):
        super().reduce()
        for p, copy in zip(self.mine, getattr(self, "copies", [])):
            copy.grad = p.grad


@zero1.breaks("inner_not_used")
class sgd_by_hand(Owners):
    def step(self):
        self.reduce()
        self.momentum, options = getattr(self, "momentum", {}), self.param_groups[0]
        for p in self.mine:
            grad = p.grad + options.get("weight_decay", 0) * p.data
            self.momentum[p] = options.get("momentum", 0) * self.momentum.get(p, 0) + grad
            p.data -= options["lr"] * self.momentum[p]
        self.share()


@zero1.breaks("too_much_traffic")
class gathers_the_gradients_of_all(GathersGradients):
    pass
