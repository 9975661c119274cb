"""What a rank's tensors hold, storage by storage, and how much of it are weights.

Storages count, not tensors: a view keeps all of its storage alive, and so does what autograd has
saved for backward.  A storage that was emptied with ``resize_(0)`` holds nothing, whoever still
refers to it.  What was copied from weights, or came from other ranks' weights, is weights as well.
"""

import gc
import sys
from dataclasses import dataclass
from types import FrameType

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from multigpu.ranks.memory_limit import PLAIN
from multigpu.ranks.tracing import tensors_in

BYTES = 8  # of a number in float64, which all of these models are in
COPYING = ("clone", "copy_", "cat", "stack", "_to_copy", "constant_pad_nd", "_reshape_copy")
KINDS = ("weights", "others", "together")  # of elements, see Held
MOVING = ("gather", "alltoall", "all_to_all")  # collectives whose outputs hold others' inputs


@dataclass
class Held:
    """Elements that are alive: weights, everything else, and all together.

    In a peak these are the most of each, at different moments.  The lines are those of the
    submission that were running then; None in torch's own backward.
    """

    weights: int = 0
    others: int = 0
    together: int = 0
    weights_line: int | None = None
    others_line: int | None = None
    together_line: int | None = None


@dataclass
class Kept:
    """One storage that was seen; ``counted`` is False for copies of the checker's own."""

    storage: StorageWeakRef
    weights: bool = False
    counted: bool = True


@dataclass
class Allowed:
    """From how many elements on it is worth asking whether they are garbage."""

    weights: int
    together: int  # more than at the beginning of the phase, the weights there not counted


class Meter(TorchDispatchMode):
    """Looks at all storages after every operator of this thread, also in backward."""

    def __init__(self, path, allowed=None):
        super().__init__()
        self.path, self.allowed = path, allowed
        self.kept = {}  # by the address of the storage
        self.peak, self.base = Held(), 0
        self.may_be_more = False  # since the last look

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(kind not in PLAIN for kind in types):
            return NotImplemented  # a DTensor, say: its parts come here by themselves
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func._schema.name.rpartition("::")[2]
        if func.namespace == "c10d":
            self.moved(name, args)
            self.may_be_more = True  # what it fills may have been empty before
        else:
            self.may_be_more |= name == "copy_"
            inputs, outputs = list(tensors_in([*args, *kwargs.values()])), list(tensors_in(result))
            copied = name.startswith(COPYING) or (
                func.namespace == "_c10d_functional" and any(word in name for word in MOVING)
            )
            weights = copied and self.from_weights(inputs[1:] if name == "copy_" else inputs)
            for tensor in inputs:
                self.see(tensor)
            for tensor in outputs:
                self.see(tensor, weights=weights)
        if self.may_be_more:
            self.look()
        return result

    def see(self, tensor, *, weights=False, counted=True):
        """Take a tensor's storage into account from now on."""
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            return
        storage = tensor.untyped_storage()
        kept = self.kept.get(storage._cdata)
        if kept is None or kept.storage.expired():
            kept = self.kept[storage._cdata] = Kept(StorageWeakRef(storage), counted=counted)
            self.may_be_more = True
        kept.weights |= weights

    def is_weights(self, tensor):
        if tensor.layout != torch.strided:
            return False
        kept = self.kept.get(tensor.untyped_storage()._cdata)
        return kept is not None and not kept.storage.expired() and kept.weights

    def from_weights(self, tensors):
        """Whether at least half of what is copied are weights."""
        weights = sum(tensor.numel() for tensor in tensors if self.is_weights(tensor))
        return weights > 0 and 2 * weights >= sum(tensor.numel() for tensor in tensors)

    def moved(self, name, args):
        """A collective has filled its first argument.  Its tensors may be the tracer's copies."""
        outputs = list(tensors_in(args[0]))
        inputs = list(tensors_in(args[1])) if len(args) > 1 else []
        weights = name.startswith("broadcast") or (
            any(word in name for word in MOVING)
            and "reduce" not in name
            and any(self.is_weights(tensor) for tensor in inputs)
        )
        for tensor in outputs:
            self.see(tensor, weights=weights, counted=False)

    def held(self):
        """What is alive at this moment.

        A learner's code is traced, which makes calls of Python functions slow: here are none.
        """
        alive = torch.UntypedStorage._new_with_weak_ptr  # None for a storage that is gone
        gone, weights, others = [], 0, 0
        for key, kept in self.kept.items():
            storage = alive(kept.storage.cdata)
            if storage is None:
                gone.append(key)
            elif kept.counted and kept.weights:
                weights += -(-storage.nbytes() // BYTES)
            elif kept.counted:
                others += -(-storage.nbytes() // BYTES)
        for key in gone:
            del self.kept[key]
        return Held(weights, others, weights + others)

    def look(self):
        """Note a new peak.  Garbage that Python has not collected yet is not held against it."""
        now, peak, allowed = self.held(), self.peak, self.allowed
        self.may_be_more = False
        risen = [kind for kind in KINDS if getattr(now, kind) > getattr(peak, kind)]
        if (
            allowed
            and risen
            and (now.weights > allowed.weights or now.together > self.base + allowed.together)
        ):
            gc.collect()  # takes milliseconds, so it is asked for new peaks only
            now = self.held()
        for kind in risen:
            if getattr(now, kind) > getattr(peak, kind):
                setattr(peak, kind, getattr(now, kind))
                setattr(peak, f"{kind}_line", self.line())

    def line(self):
        """The line of the submission that is running, innermost first."""
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_code.co_filename == self.path:
                return frame.f_lineno
            frame = frame.f_back
        return None

    def begin(self):
        """Start a new phase: the peak is what is there now."""
        gc.collect()
        self.peak = self.held()
        self.base = self.peak.others

    def end(self):
        """The peak of the phase, and what is left at its end; as plain data."""
        self.look()
        gc.collect()
        return {"peak": dict(vars(self.peak)), "left": vars(self.held())}
