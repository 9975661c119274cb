"""Cut any model into stages of equal time, for pipeline parallelism.

    from multigpu.training import cut
    stages = cut(model, sample, 4)      # sample: the inputs of one micro-batch
    print(stages)                       # what is where, how long it takes, how much it needs
    stages.modules[0]                   # an nn.Module: stage 0

recording.py writes down what the model calls, measuring.py times it in pieces, dividing.py chooses
the cuts, stage.py is what comes out. Begin to read in stages.py.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from multigpu.training.cutting.costs import Costs
from multigpu.training.cutting.measuring import measure, pieces_of
from multigpu.training.cutting.recording import record_both
from multigpu.training.cutting.stages import CutPoints, Stages
from multigpu.training.cutting.verifying import verify

__all__ = ["CutPoints", "Stages", "cut", "cut_points"]


def cut(
    model: nn.Module,
    sample: Any,
    num_stages: int,
    *,
    balance: str = "time",
    memory: int | None = None,
    micro_batches: int | None = None,
    schedule: str = "1f1b",
    optimizer_state: float = 2.0,
    repeats: int = 4,
    device: Any = None,
) -> Stages:
    """Cut `model` into `num_stages` stages that can run one after the other on different devices.

    `sample` is what the model is called with for one micro-batch: a tensor, or a tuple of inputs;
    the first dimension of each tensor is the rows. `balance` says what shall be equal: "time"
    (forward and backward, measured on `device`, the model's own by default, `repeats` times),
    "memory" or "layers" (modules with parameters). `memory` is the limit of a device in bytes: for
    weights, gradients, the optimizer's `optimizer_state` numbers per parameter (2: Adam), and the
    activations of all micro-batches that `schedule` ("1f1b", "gpipe") keeps in flight.

    Raises ValueError where the model cannot be cut so, and says at which operation.
    """
    points = cut_points(model, sample, repeats=repeats, device=device)
    return points.cut(
        num_stages,
        balance=balance,
        memory=memory,
        micro_batches=micro_batches,
        schedule=schedule,
        optimizer_state=optimizer_state,
    )


def cut_points(model: nn.Module, sample: Any, *, repeats: int = 4, device: Any = None) -> CutPoints:
    """Measure once, then cut as often as you like: `cut_points(model, sample).cut(4)`."""
    import torch

    inputs = sample if isinstance(sample, tuple) else (sample,)
    tensors = [one for one in tree_leaves(inputs) if isinstance(one, Tensor)]
    if not tensors:
        raise ValueError("sample has no tensor: give the model's inputs for one micro-batch")
    if not (tensors[0].dim() and len(tensors[0])):
        raise ValueError(f"sample {tuple(tensors[0].shape)} has no rows: give a whole micro-batch")
    home = next((p.device for p in model.parameters()), tensors[0].device)
    device = torch.device(device) if device is not None else home
    rows = len(tensors[0])
    inputs = tree_map(lambda one: one.to(home) if isinstance(one, Tensor) else one, inputs)
    program = record_both(model, inputs, rows=rows)
    verify(model, program, inputs, rows=rows)
    places = pieces_of(model, program, inputs, rows=rows)
    there = tree_map(lambda one: one.to(device) if isinstance(one, Tensor) else one, inputs)
    seconds = measure(model, program, places, there, device=device, repeats=repeats)
    return CutPoints(model, program, Costs(model, program, places, seconds), rows)
