"""Switching virtual GPUs on and off for the whole process."""

from __future__ import annotations

import importlib

from multigpu.gpus import (
    copies,
    dropout,
    functions,
    identity,
    lazy,
    legacy_types,
    lengths,
    moves,
    pinning,
    reentry,
    refusals,
    single_numbers,
    storage,
    torch_cuda,
    values,
)
from multigpu.gpus.patches import Patches
from multigpu.gpus.tensor import VirtualTensor

# These replace parts of torch; the others have registered stand-ins by being imported.
_INSTALLED = (torch_cuda, storage, lazy, legacy_types, functions, reentry, refusals)
_REGISTERED = (copies, dropout, identity, lengths, moves, pinning, single_numbers, values)

_patches = Patches()


def switch_on() -> None:
    """Replace what has to be replaced; an error on the way leaves nothing replaced."""
    try:
        for part in _INSTALLED:
            part.install(_patches)
        # Optimizers update many tensors at once by default on CUDA, if they know the tensors' type.
        optimizer = importlib.import_module("torch.optim.optimizer")  # torch.optim hides the name
        known = optimizer._foreach_supported_types
        _patches.set(optimizer, "_foreach_supported_types", [*known, VirtualTensor])
    except BaseException:
        _patches.undo()
        raise


def switch_off() -> None:
    """Put everything back."""
    _patches.undo()
