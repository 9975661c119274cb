"""Looks at the optimizers that a learner's code makes: when they are made, and at each step.

Torch's own hooks are called for every optimizer of the process.  So the learner's code is given
torch's own class, and what its optimizers hold is seen from the moment at which it is there.
"""

import functools
import gc
import time
import weakref
from contextlib import contextmanager

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .holdings import elements, living_tensors, numbers_in, storages

PATIENCE = 1.0  # seconds


class Watch:
    """What the optimizers of one class hold.  ``slots`` names the state that there is per element.

    ``state`` has a note (step, when, elements by storages, elements as the tensors tell) for every
    look; ``gradients`` one for every step of an inner optimizer.
    """

    def __init__(self, kind, slots, model):
        self.kind, self.slots, self.model = kind, slots, model
        self.living = weakref.WeakSet()
        self.state, self.gradients, self.steps, self.kept = [], [], [], 0
        self.known, self.most = None, None  # the second is set where anybody asks

    def notes(self):
        """All that was seen."""
        return {
            "state": self.state,
            "gradients": self.gradients,
            "inner_steps": self.steps,
            "kept": self.kept,
        }

    def begin_step(self, most=None):
        """Gradients are cleared.  With ``most`` note how many numbers of them outlive the reduce.

        More than ``most`` are too many.
        """
        self.steps.append(0)
        self.most, self.known = most, None
        if most is not None:
            self.known = numbers_in([*self.others(), *self.model.parameters()])

    def note_state(self, when):
        """How many elements have state now, in all optimizers that live."""
        if not self.slots:
            return
        tensors = [
            own[slot]
            for optimizer in list(self.living)
            for own in list(optimizer.state.values())
            for slot in self.slots
            if isinstance(own, dict) and isinstance(own.get(slot), torch.Tensor)
        ]
        shown = sum(tensor.numel() for tensor in {id(t): t for t in tensors}.values())
        counts = [-(-number // len(self.slots)) for number in (elements(tensors), shown)]
        self.state.append([len(self.steps), when, *counts])

    def note_gradients(self):
        """What is in .grad now: of the model and of what the inner optimizers step."""
        there = self.gradients_now()
        in_model = elements([p.grad for p in self.model.parameters() if p.grad is not None])
        shown = sum(gradient.numel() for gradient in there)
        self.gradients.append([len(self.steps), elements(there), shown, in_model])
        if self.known is not None:
            self.kept, self.known = self.outliving(self.known, self.most), None

    def gradients_now(self):
        """Every .grad, of the model and of what the inner optimizers step."""
        groups = [group for inner in self.living for group in inner.param_groups]
        parameters = [*self.model.parameters(), *(p for group in groups for p in group["params"])]
        return list({id(p): p.grad for p in parameters if p.grad is not None}.values())

    def others(self):
        """One tensor of each storage that lives, but for those of the model's weights."""
        weights = storages(self.model.parameters())
        found = storages((*living_tensors(), *self.gradients_now()))
        return [t for key, t in found.items() if key not in weights and is_plain(t)]

    def outliving(self, known, most):
        """How many numbers live besides the weights that were not there before backward.

        The backend's threads may let go of a tensor a moment after the wait for it is over.  So
        where there are too many, look again for a while.
        """
        gc.collect()  # what only refers to itself is as good as gone
        end = time.monotonic() + PATIENCE
        while True:
            numbers = numbers_in(self.others())
            new = int((~torch.isin(numbers, known)).sum())
            if new <= most or time.monotonic() > end:
                return new
            time.sleep(0.01)

    def made(self, optimizer):
        self.living.add(optimizer)
        self.note_state("when the inner optimizer had been made")

    def before(self, optimizer, *_):
        if isinstance(optimizer, self.kind):
            self.living.add(optimizer)
            self.steps[-1] += 1
            self.note_state("before the inner step")
            self.note_gradients()

    def after(self, optimizer, *_):
        if isinstance(optimizer, self.kind):
            self.note_state("after the inner step")


def is_plain(tensor):
    return tensor.dtype == torch.float64 and tensor.layout == torch.strided


@contextmanager
def watched(kind, slots, model):
    """A Watch over all optimizers of this class that are made or step in the block."""
    watch, init = Watch(kind, slots, model), kind.__init__

    @functools.wraps(init)
    def made(self, *arguments, **options):
        init(self, *arguments, **options)
        watch.made(self)

    hooks = [
        register_optimizer_step_pre_hook(watch.before),
        register_optimizer_step_post_hook(watch.after),
    ]
    kind.__init__ = made
    try:
        yield watch
    finally:
        kind.__init__ = init
        for hook in hooks:
            hook.remove()
