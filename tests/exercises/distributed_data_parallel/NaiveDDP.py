"""``distributed_data_parallel.NaiveDDP``: training as in one process, step by step."""

import torch
import torch.distributed as dist

from multigpu.checking.declaration import exercise
from multigpu.checking.specimen import rows_by_step

from .models import chain, fork, forked, specimen
from .wrapped_training import calls, some_are_averaged, start, training, trains_as_one_process
from .wrong_wrappers import Wrapper, every_wrapper

naive = exercise(
    "distributed_data_parallel.NaiveDDP",
    expects="{promise}",
    share_of=lambda case: case.world,
)


@naive.cases
def cases():
    """Tied, frozen and zero-dimensional parameters, then gradients that are kept and zeroed."""
    for world in (3, 4, 2, 1):
        yield start(world)
        yield training(world, "training", specimen, rows_by_step(world, 3, 3, 3))
        yield training(world, "zeroed gradients", chain, rows_by_step(world, 2, 3, 2), ["keep"])
        yield calls(world)
        if world == 3:
            yield training(world, "parameters not used on all ranks", fork, forked(world, 3))


trains_as_one_process(naive)
some_are_averaged(
    naive,
    usually="not every parameter was sent.",
    fix="Send every parameter with requires_grad, also one without a dimension.",
)
every_wrapper.add_to(naive)


@naive.right
class one_flat_tensor(Wrapper):
    def sync_gradients(self):
        trained = [p for p in self.module.parameters() if p.requires_grad]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
        flat = torch.cat([g.flatten() for g in grads]) / dist.get_world_size()
        dist.all_reduce(flat)
        for p, piece in zip(trained, flat.split([p.numel() for p in trained])):
            p.grad = piece.view_as(p)


@naive.right
class gathers_and_takes_the_mean(Wrapper):
    def start(self):
        everything = [list(self.module.parameters()) + list(self.module.buffers())]
        dist.broadcast_object_list(everything, src=0)
        with torch.no_grad():
            mine = [*self.module.parameters(), *self.module.buffers()]
            for tensor, first in zip(mine, everything[0]):
                tensor.copy_(first)

    def sync_gradients(self):
        for p in self.module.parameters():
            gathered = [p.grad] * dist.get_world_size()
            dist.all_gather_object(gathered, p.grad)
            grads = [g for g in gathered if g is not None]
            if grads:
                p.grad = sum(grads) / dist.get_world_size()


@naive.mistake(
    "unused_out_of_step",
    "a gradient that is None was skipped on one rank, while other ranks wait for it.",
    fix="Every rank makes every call: put zeros where there is no gradient.",
    status="mismatch",
)
class skips_missing_gradients(Wrapper):
    def sync_gradients(self):
        for p in self.module.parameters():
            if p.grad is not None:
                self.average(p)


@naive.mistake(
    "missing_stays_none",
    "this rank took part with zeros, but threw away what the others sent.",
    fix="Put the mean into .grad here too, or the weights of the ranks drift apart.",
)
class throws_the_mean_away_where_unused(Wrapper):
    def sync_gradients(self):
        for p in self.module.parameters():
            if p.requires_grad:
                total = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(total)
                total /= dist.get_world_size()


@naive.mistake(
    "none_was_sent",
    "the .grad of a parameter that is frozen, or that this rank did not use, is None.",
    fix="Leave frozen parameters out on all ranks, and send zeros where there is no gradient.",
    status="crash",
)
class takes_every_gradient_for_granted(Wrapper):
    def sync_gradients(self):
        for p in self.module.parameters():
            self.average(p)


@naive.breaks("weights_changed")
class averages_weights(Wrapper):
    def average(self, p):
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()


@naive.breaks("some_not_averaged")
class forgets_parameters_without_dimension(Wrapper):
    def average(self, p):
        if p.dim() > 0:
            super().average(p)


@naive.breaks("not_waited")
class does_not_wait(Wrapper):
    def average(self, p):
        dist.all_reduce(p.grad, async_op=True)
        p.grad /= dist.get_world_size()


@naive.breaks("written_on_the_way")
class divides_before_it_has_arrived(Wrapper):
    def average(self, p):
        handle = dist.all_reduce(p.grad, async_op=True)
        p.grad /= dist.get_world_size()
        handle.wait()
