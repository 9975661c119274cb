"""Whether a call leaves the tensors that it was given as they were."""

import torch


class Kept:
    """Remembers tensors, and tells later which of them have changed."""

    def __init__(self, **tensors):
        self.tensors = tensors
        self.before = {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def changed(self):
        """Names of the tensors with other numbers, another shape, type or place than before."""
        return [name for name, old in self.before.items() if not _equal(self.tensors[name], old)]


def _equal(came, old):
    return (came.dtype, came.device) == (old.dtype, old.device) and torch.equal(came, old)
