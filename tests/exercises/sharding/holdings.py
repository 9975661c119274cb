"""What lives on a rank: storages, each counted once for all the tensors that are views of it.

``numel`` of a view says little: the view keeps the whole storage alive that it is a part of.
"""

import gc
import math
from contextlib import contextmanager

import torch

from multigpu.devices.meters import MemoryMeter
from multigpu.ranks.memory_limit import counting
from multigpu.ranks.traced_group import Copies, TracedWork


def storages(tensors):
    """For each storage one of the tensors that use it; None and other objects are left out."""
    found = {}
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            found.setdefault(tensor.untyped_storage()._cdata, tensor)
    return found


def elements(tensors):
    """How many numbers the tensors keep alive."""
    return sum(capacity(tensor) for tensor in storages(tensors).values())


def capacity(tensor):
    """How many numbers the storage has in which the tensor lies."""
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def numbers_in(tensors):
    """All numbers but zero in the storages of these tensors, each once, in their order."""
    contents = [t.detach().as_strided((capacity(t),), (1,), 0) for t in storages(tensors).values()]
    numbers = torch.cat(contents).unique() if contents else torch.zeros(0, dtype=torch.float64)
    return numbers[numbers != 0]


def forget_the_past():
    """What lives already is none of ``living_tensors`` from now on."""
    gc.freeze()


def living_tensors():
    """Every tensor that some Python object holds.

    What a handle of ours keeps only to make its result visible at wait() is not the learner's.
    """
    objects = gc.get_objects()
    kinds = {type(thing) for thing in objects}
    tensor_kinds = {kind for kind in kinds if issubclass(kind, torch.Tensor)}
    kept = set()
    for thing in objects:
        if type(thing) is TracedWork:
            kept |= {id(tensor) for tensor in thing._tensors}
        elif type(thing) is Copies:
            copies = thing._data, thing._outputs, thing._before, thing.stand_ins
            kept |= {id(tensor) for own in copies for tensor in own.values()}
    return [t for t in objects if type(t) in tensor_kinds and id(t) not in kept]


class PeakMeter(MemoryMeter):
    """Counts the elements that live, in tensors of 8 bytes a number, and the most there were.

    What only refers to itself is as good as gone: garbage is collected before ``most`` is passed.
    Once it is passed all the same, there is no need for more of that, which takes long.
    """

    def __init__(self):
        super().__init__(2**60, lambda **_: AssertionError("the limit is never reached"))
        self.most = math.inf

    def check(self, size):
        if self.allocated + size > self.most:
            gc.collect()
            if self.allocated + size > self.most:
                self.most = math.inf

    def begin(self, *, at_most=math.inf):
        """Start a phase that may add ``at_most`` elements; returns how many there are."""
        now = self.now()
        self.reset_peak()
        self.most = self.allocated + 8 * at_most
        return now

    def now(self):
        gc.collect()
        return -(-self.allocated // 8)

    def highest(self):
        """The most since ``begin``."""
        return -(-self.peak // 8)


@contextmanager
def metered():
    """Count what every operator of the block returns, also in backward and in other threads."""
    meter = PeakMeter()
    with counting(meter):
        yield meter
