"""What travels between the stages of a pipeline: how many tensors, of which shape and type.

PyTorch's PipelineStage finds it out by itself in the first step. It calls the stages for that in
training mode, so that BatchNorm would count rows that do not exist, and a run that goes on from a
checkpoint would count them once more. Here they are called in evaluation mode, with the random
numbers put back, and the stages are told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist

from multigpu.training.module_modes import modes_kept


class Flow(NamedTuple):
    """A tensor that one stage hands to the next, described."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, tensor: Tensor) -> Flow:
        return cls(tuple(tensor.shape), tensor.dtype, tensor.requires_grad)

    def zeros(self, device: torch.device) -> Tensor:
        """A tensor like this one."""
        return torch.zeros(
            self.shape, dtype=self.dtype, device=device, requires_grad=self.requires_grad
        )


Autocast = Callable[[], contextlib.AbstractContextManager[Any]]
Flows = list[tuple[Flow, ...]]  # into each stage, and out of the last one


def flows_between(
    stages: Mapping[int, nn.Module],
    inputs: tuple[Tensor, ...],
    *,
    num_stages: int,
    device: torch.device,
    autocast: Autocast,
) -> Flows:
    """What goes into each stage, and out of the last one, for a micro-batch `inputs`.

    Every rank calls it with its own `stages`, by their number; all get the same answer. In which
    type a stage answers depends on `autocast`.
    """
    flows: Flows = [tuple(Flow.of(tensor) for tensor in inputs)]
    with quietly(stages, device), torch.enable_grad(), autocast():
        for number in range(num_stages):
            box: list[Any] = [None]
            if number in stages:
                given = inputs if number == 0 else [flow.zeros(device) for flow in flows[-1]]
                box[0] = tuple(Flow.of(tensor) for tensor in as_tuple(stages[number](*given)))
            dist.broadcast_object_list(box, src=number % dist.get_world_size())
            flows.append(box[0])
    return flows


def as_tuple(outputs: Any) -> tuple[Tensor, ...]:
    """What a stage returned, as a tuple of tensors.  Raises TypeError for anything else."""
    found = tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)
    for each in found:
        if not isinstance(each, Tensor):
            raise TypeError(
                f"a stage of the pipeline returned a {type(each).__name__}: between stages tensors "
                "alone can travel, and the model's output must be a tensor, or a tuple of them"
            )
    return found


@contextlib.contextmanager
def quietly(stages: Mapping[int, nn.Module], device: torch.device) -> Iterator[None]:
    """Evaluation mode inside; afterwards modes and random numbers are as they were."""
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus), modes_kept(*stages.values()):
        for stage in stages.values():
            stage.eval()
        yield
