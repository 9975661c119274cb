"""``distributed_data_parallel.OverlappedDDP``: as NaiveDDP, but during backward."""

import torch
import torch.distributed as dist

from multigpu.checking.declaration import exercise
from multigpu.checking.specimen import rows_by_step
from multigpu.ranks.errors import counted

from .models import chain, specimen
from .wrapped_training import (
    calls,
    handles_are_let_go,
    in_each_step,
    some_are_averaged,
    start,
    training,
    trains_as_one_process,
    travels_during_backward,
)
from .wrong_wrappers import Wrapper, every_wrapper

overlapped = exercise(
    "distributed_data_parallel.OverlappedDDP",
    expects="{promise}",
    share_of=lambda case: case.world,
)


@overlapped.cases
def cases():
    """Tied, frozen and zero-dimensional parameters, then layers that are ready one by one."""
    for world in (3, 4, 2, 1):
        steps = rows_by_step(world, 3, 3, 3)
        yield start(world)
        yield training(world, "training", specimen, steps, ["handles"])
        if world == 2:
            yield training(world, "zeroed gradients", specimen, steps, ["keep"])
        slow = rows_by_step(world, 2, 3, 2)
        yield training(world, "layer by layer", chain, slow, ["one_by_one"])
        yield calls(world)


def number_of_collectives(name, is_wrong, *, first):
    """A step makes one all-reduce per trainable parameter."""

    def wrong(note, sent, case):
        trainable = sum(p.requires_grad for p in case.model(0).parameters())
        if case.world > 1 and is_wrong(len(sent), trainable):
            return f"{counted(len(sent), 'all-reduce')} for {counted(trainable, 'parameter')}"
        return None

    in_each_step(
        overlapped,
        name,
        wrong,
        expects="a step makes one all-reduce for each trainable parameter",
        usually="a tied parameter has two names and one gradient, and frozen ones have none.",
        fix="parameters() gives each parameter once; take those with requires_grad.",
        first=first,
    )


# What is divided twice because it was sent twice is explained best by that.
number_of_collectives("wrong_number_of_collectives", int.__gt__, first=True)
trains_as_one_process(overlapped)
some_are_averaged(
    overlapped,
    usually="not every parameter has a hook, or a hook is called before .grad is there, such as"
    " those of modules.",
    fix="Give a hook to every parameter with requires_grad:"
    " parameter.register_post_accumulate_grad_hook.",
)
every_wrapper.add_to(overlapped)
number_of_collectives("wrong_number_of_collectives", int.__ne__, first=False)
travels_during_backward(overlapped)
handles_are_let_go(overlapped)


class Hooked(Wrapper):
    """A right answer with a hook for each parameter."""

    def __init__(self, module):
        super().__init__(module)
        self.handles = []
        for p in module.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.hook)

    def hook(self, p):
        p.grad /= dist.get_world_size()
        self.handles.append(dist.all_reduce(p.grad, async_op=True))

    def sync_gradients(self):
        for handle in self.handles:
            handle.wait()
        self.handles = []


@overlapped.right
class divides_after_waiting(Hooked):
    def hook(self, p):
        self.handles.append((p, dist.all_reduce(p.grad, async_op=True)))

    def sync_gradients(self):
        for p, handle in self.handles:
            handle.wait()
            p.grad.div_(dist.get_world_size())
        self.handles.clear()


@overlapped.right
class hooks_on_gradients(Wrapper):
    def __init__(self, module):
        super().__init__(module)
        self.started = []
        for p in module.parameters():
            if p.requires_grad:
                p.register_hook(lambda grad, p=p: self.begin(p, grad))

    def begin(self, p, grad):
        mine = grad.clone()
        self.started.append((p, mine, dist.all_reduce(mine, async_op=True)))

    def sync_gradients(self):
        while self.started:
            p, total, handle = self.started.pop()
            handle.wait()
            p.grad = total / dist.get_world_size()


@overlapped.mistake(
    "frozen_hooked",
    "a frozen parameter never gets a gradient, so torch refuses a hook on it.",
    fix="Give hooks to the parameters with requires_grad.",
    status="crash",
)
class hooks_frozen_parameters(Hooked):
    def __init__(self, module):
        super().__init__(module)
        for p in module.parameters():
            p.register_post_accumulate_grad_hook(lambda p: None)


@overlapped.breaks("keeps_handles")
class never_empties_the_list(Hooked):
    def sync_gradients(self):
        for handle in self.handles:
            handle.wait()


@overlapped.breaks("starts_late")
class starts_the_first_ones_only(Hooked):
    def hook(self, p):
        self.ready = [*getattr(self, "ready", []), p]
        if len(self.handles) < 2:
            super().hook(p)

    def sync_gradients(self):
        for p in self.ready[2:]:
            super().hook(p)
        self.ready = []
        super().sync_gradients()


@overlapped.breaks("blocks_backward")
class without_async(Hooked):
    def hook(self, p):
        p.grad /= dist.get_world_size()
        dist.all_reduce(p.grad)


@overlapped.breaks("wrong_number_of_collectives")
class one_for_each_name(Hooked):
    def __init__(self, module):
        super().__init__(module)
        for name, p in module.named_parameters(remove_duplicate=False):
            if name == "decode.weight":
                p.register_post_accumulate_grad_hook(self.again)

    def again(self, p):
        self.handles.append(dist.all_reduce(torch.zeros_like(p), async_op=True))


@overlapped.breaks("some_not_averaged")
class weights_only(Hooked):
    def hook(self, p):
        if p.dim() > 1:
            super().hook(p)
