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

from .holdings import contents, elements, living_tensors, storages

SMALL = 100_000  # bytes of a storage that the judge wants to see
PATIENCE = 1.0  # seconds


class Watch:
    """What the optimizers of one class hold.  ``slots`` names the state that there is per element.

    ``held`` has a note (when, elements by storages, elements as the tensors tell) for every look.
    """

    def __init__(self, kind, slots, model):
        self.kind, self.slots, self.model = kind, slots, model
        self.living = weakref.WeakSet()
        self.new_step()

    def new_step(self, *, look_at=None):
        """Begin the notes of a step.

        With ``look_at``, a number of elements, also note what lives before the inner step.  So
        many gradients may be there.
        """
        self.held, self.gradients, self.inner_steps = [], [], 0
        self.look_at, self.contents = look_at, []
        if look_at is not None:
            self.look_at += elements(self.others()) - elements(self.gradients_now())

    def notes(self):
        """The notes of this step."""
        return {
            "held": self.held,
            "gradients": self.gradients,
            "inner_steps": self.inner_steps,
            "contents": self.contents,
        }

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
        self.held.append((when, *counts))

    def note_gradients(self):
        """What is in .grad now: of the model and of what the inner optimizers step."""
        there = self.gradients_now()
        stepped = {id(p) for p in self.stepped()}
        model = {n: p for n, p in self.model.named_parameters() if p.grad is not None}
        self.gradients.append(
            {
                "held": elements(there),
                "shown": sum(gradient.numel() for gradient in there),
                "in_model": elements([p.grad for p in model.values()]),
                "not_stepped": [n for n, p in model.items() if id(p) not in stepped],
            }
        )
        if self.look_at is not None:
            self.contents = self.settled()
            self.look_at = None

    def gradients_now(self):
        """Every .grad, of the model and of what the inner optimizers step."""
        parameters = [*self.model.parameters(), *self.stepped()]
        return list({id(p): p.grad for p in parameters if p.grad is not None}.values())

    def stepped(self):
        """The parameters of all inner optimizers."""
        groups = [group for inner in self.living for group in inner.param_groups]
        return [p for group in groups for p in group["params"]]

    def others(self):
        """One tensor of each storage that lives, but for those of the model's weights."""
        weights = storages(self.model.parameters())
        found = storages((*living_tensors(), *self.gradients_now()))
        return [t for key, t in found.items() if key not in weights and is_plain(t)]

    def settled(self):
        """What lives besides the weights.

        The backend's threads may let go of a tensor a moment after the wait for it is over.  So
        where there is more than expected, look again for a while.
        """
        gc.collect()  # what only refers to itself is as good as gone
        end = time.monotonic() + PATIENCE
        while elements(self.others()) > self.look_at and time.monotonic() < end:
            time.sleep(0.01)
        return [contents(t) for t in self.others() if t.untyped_storage().nbytes() < SMALL]

    def made(self, optimizer):
        self.living.add(optimizer)
        self.note_state("made")

    def before(self, optimizer, *_):
        if isinstance(optimizer, self.kind):
            self.living.add(optimizer)
            self.inner_steps += 1
            self.note_state("before")
            self.note_gradients()

    def after(self, optimizer, *_):
        if isinstance(optimizer, self.kind):
            self.note_state("after")


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
