"""What lives on a rank: storages, each counted once for all the tensors that are views of it.

``numel`` of a view says little: the view keeps the whole storage alive that it is a part of.
"""

import gc

import torch

from multigpu.ranks.tracing import Copies, TracedWork


def storages(tensors):
    """By storage one of the tensors that lie in it; None and other things are left out."""
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


def contents(tensor):
    """All numbers of the storage in which the tensor lies, copied."""
    return tensor.detach().as_strided((capacity(tensor),), (1,), 0).clone()


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
            copies = thing._tensors, thing._before, thing._stand_ins.values()
            kept |= {id(tensor) for own in copies for tensor in own}
            kept |= {id(tensor) for pair in thing._outputs for tensor in pair}
    return [t for t in objects if type(t) in tensor_kinds and id(t) not in kept]
