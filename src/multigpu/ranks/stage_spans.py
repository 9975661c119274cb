"""Records the work of a pipeline's stage in the trace: spans `forward 0`, `backward 0`, ...

    stage = WatchedStage(stage, micro_batches=4)
    run(stage, schedule, microbatches, loss_fn)

The schedule that calls the stage, PyTorch's or a learner's, need not know of it. The spans are
what ``multigpu.scaling.pipeline_times.recorded_steps`` reads.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.autograd import Variable

from multigpu.ranks.recorder import end_span, span


class WatchedStage(nn.Module):
    """A stage that computes what ``stage`` does, with a span for each forward and each backward.

    On a GPU it waits for the kernels at both ends of a span, which makes the run slower.
    """

    def __init__(self, stage: nn.Module, *, micro_batches: int, number: int | None = None) -> None:
        """Count from micro-batch 0 again after ``micro_batches`` forward passes.

        Micro-batches are numbered in the order of their forward passes, which is that of every
        schedule in use. ``number`` is the stage's number, where a rank has several.
        """
        super().__init__()
        self.stage = stage
        self.micro_batches = micro_batches
        self.suffix = "" if number is None else f" {number}"
        self.calls = 0

    def forward(self, *inputs: Any) -> Any:
        """What the stage returns. Where gradients are off nothing is recorded."""
        # PyTorch's stages ask for shapes before the first micro-batch comes: with stand-ins for
        # tensors, or, before 2.13, with zeros and without gradients.
        stand_in = any(
            isinstance(each, FakeTensor) or (isinstance(each, Tensor) and each.is_meta)
            for each in inputs
        )
        if stand_in or not torch.is_grad_enabled():
            return self.stage(*inputs)
        name = f"{self.calls % self.micro_batches}{self.suffix}"
        self.calls += 1
        _wait_for_the_gpu()
        with span(f"forward {name}"):
            outputs = self.stage(*inputs)
            _wait_for_the_gpu()
        _watch_backward(outputs if isinstance(outputs, tuple) else (outputs,), f"backward {name}")
        return outputs


def _watch_backward(outputs: tuple[Any, ...], label: str) -> None:
    """A span from the first gradient that comes in to the end of this backward pass."""
    begun: list[float] = []

    def begin(gradient: Tensor) -> None:
        if not begun:
            _wait_for_the_gpu()
            begun.append(time.monotonic())
            # The engine calls it when nothing is left to compute: DDP waits for buckets this way.
            Variable._execution_engine.queue_callback(end)

    def end() -> None:
        _wait_for_the_gpu()
        end_span(label, begun[0])

    for output in outputs:
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(begin)  # type: ignore[no-untyped-call]


def _wait_for_the_gpu() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
