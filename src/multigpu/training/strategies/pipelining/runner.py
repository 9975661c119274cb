"""PyTorch's pipeline for micro-batches of one shape: the stages of this rank and their schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.utils._pytree import tree_leaves, tree_map

from multigpu.ranks.recorder import Current
from multigpu.ranks.stage_spans import WatchedStage
from multigpu.training.strategies.pipelining.flows import Autocast, Flows
from multigpu.training.strategies.pipelining.micro_batches import Layout
from multigpu.training.strategies.strategy import LossFn, require_mean

SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
}


class Runner:
    """Runs micro-batches of one shape through the pipeline. Every rank has one, and calls it."""

    def __init__(
        self,
        stages: Mapping[int, nn.Module],
        flows: Flows,
        *,
        schedule: str,
        micro_batches: int,
        device: torch.device,
        autocast: Autocast,
        backward: bool,
    ) -> None:
        """`stages`: this rank's, by their number; `flows`: what goes into each and out of the last.

        `backward`: for training; else for an evaluation, which has no loss here.
        """
        self.autocast, self.device, self.flows = autocast, device, flows
        self.has_last = len(flows) - 2 in stages
        self.has_first = 0 in stages
        pieces = [
            PipelineStage(
                self._watched(Part(stage, autocast), number, micro_batches, len(stages)),
                number,
                len(flows) - 1,
                device,
                input_args=meta(flows[number]),
                output_args=meta(flows[number + 1]),
            )
            for number, stage in stages.items()
        ]
        kind: Any = SCHEDULES[schedule]
        self.schedule = kind(
            pieces if schedule == "interleaved" else pieces[0],
            micro_batches,
            loss_fn=self._loss if backward else None,
            scale_grads=False,  # each loss is weighted by its rows, see _loss
        )

    @staticmethod
    def _watched(part: nn.Module, number: int, micro_batches: int, stages: int) -> nn.Module:
        """Under run_ranks the trace shows each forward and backward, as long as it records."""
        if Current.recorder is None:
            return part
        label = number if stages > 1 else None
        return WatchedStage(part, micro_batches=micro_batches, number=label)

    def train(
        self, inputs: Any, targets: Any, layout: Layout, loss_fn: LossFn, *, global_rows: int
    ) -> Tensor:
        """Add the gradients of the mean loss over `global_rows` to `.grad`.

        Returns the sum of the rows' losses, detached: 0 on ranks without the last stage.
        """
        self._layout, self._targets, self._loss_fn = layout, targets, loss_fn
        self._global_rows = global_rows
        self._total = torch.zeros((), dtype=torch.float64, device=self.device)
        places = torch.arange(len(layout.counts) * layout.size)
        self.schedule.step(
            *(as_arguments(layout.fill(inputs)) if self.has_first else ()),
            target=places if self.has_last else None,
            return_outputs=False,
        )
        return self._total

    def evaluate(self, inputs: Any, layout: Layout) -> Any:
        """The model's outputs for all rows; None on ranks without the last stage."""
        filled = as_arguments(layout.fill(inputs)) if self.has_first else ()
        outputs = self.schedule.step(*filled)
        return layout.empty(outputs) if self.has_last else None

    def _loss(self, outputs: Any, places: Tensor) -> Tensor:
        """One micro-batch's share of the mean over the global batch.

        The schedule hands on what it was given as targets: the micro-batch's places in the batch.
        """
        number = int(places[0]) // self._layout.size
        count = self._layout.counts[number]
        if not count:  # rows that fill it up alone
            return sum((leaf.sum() for leaf in tree_leaves(outputs)), start=self._nothing()) * 0
        with self.autocast():
            answers = self._layout.counted(outputs, number)
            loss = require_mean(self._loss_fn(answers, self._layout.part(self._targets, number)))
        self._total += loss.detach() * count
        return loss * (count / self._global_rows)

    def _nothing(self) -> Tensor:
        return torch.zeros((), device=self.device)


class Part(nn.Module):
    """A stage as the schedule calls it: in the run's precision, its outputs fit to be sent."""

    def __init__(self, stage: nn.Module, autocast: Autocast) -> None:
        super().__init__()
        self.stage, self.autocast = stage, autocast

    def forward(self, *inputs: Tensor) -> Any:
        with self.autocast():
            outputs = self.stage(*inputs)
        return tree_map(lambda value: value.contiguous(), outputs)


def meta(flow: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Tensors without memory that say what flows."""
    return tuple(each.zeros(torch.device("meta")) for each in flow)


def as_arguments(inputs: Any) -> tuple[Any, ...]:
    """A batch's inputs as the model's positional arguments."""
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
