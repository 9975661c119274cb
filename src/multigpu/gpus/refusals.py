"""What virtual GPUs cannot do, and would fail at in a way that is hard to understand."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from multigpu.gpus.patches import Patches
from multigpu.gpus.tensor import VirtualTensor


def install(patches: Patches) -> None:
    """Refuse torch.compile and DistributedDataParallel in clear words."""
    patches.set(torch, "compile", _compile)
    patches.wrap(DistributedDataParallel, "__init__", _distributed)


def _compile(model: Any = None, **options: Any) -> Any:
    raise RuntimeError(
        "torch.compile does not work on virtual GPUs: it would generate code for a GPU that is "
        "not there. Run the model without it; results are the same."
    )


def _distributed(init: Any) -> Any:
    @functools.wraps(init)
    def checked(wrapper: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        if any(isinstance(parameter, VirtualTensor) for parameter in module.parameters()):
            raise RuntimeError(
                "DistributedDataParallel needs one process per GPU, and virtual GPUs serve one "
                "process. Use nn.DataParallel here, or leave the model on the CPU."
            )
        init(wrapper, module, *args, **kwargs)

    return checked
