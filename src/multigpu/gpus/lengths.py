"""A loss whose lengths may be on the CPU while everything else is on a GPU."""

from __future__ import annotations

from typing import Any

import torch

from multigpu.gpus.calls import Args, Kwargs, call, takes_over
from multigpu.gpus.tensor import VirtualTensor


@takes_over(torch.ctc_loss)
def ctc_loss(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`torch.ctc_loss`: CUDA takes the lengths from the CPU; the core does not for subclasses."""
    log_probs, targets, *lengths = args[:4]
    if isinstance(log_probs, VirtualTensor):
        gpu = log_probs._gpu
        with torch._C.DisableTorchFunction():
            lengths = [
                each
                if isinstance(each, VirtualTensor)
                else VirtualTensor(torch.as_tensor(each, device=gpu.backing), gpu)
                for each in lengths
            ]
    return call(func, (type(log_probs),), (log_probs, targets, *lengths, *args[4:]), kwargs)
