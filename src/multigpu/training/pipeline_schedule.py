"""A batch passes through the stages of this rank: PyTorch's schedules, micro-batches of one size.

PyTorch's stages receive into buffers of one shape, so all micro-batches of a step have as many
rows. If the rows cannot be divided equally, the smaller micro-batches are padded with a repeated
row. It is computed and dropped before the loss, so it does not count. Only BatchNorm sees it, as it
sees only the rows of its micro-batch.

PyTorch's PipelineStage infers the shapes between stages in the first step. For that it calls the
stages in training mode, so that BatchNorm would count rows that do not exist, and a resumed run
would count them again. Here the stages are called in evaluation mode, the random numbers are
restored, and the shapes are passed to PipelineStage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.utils._pytree import tree_leaves, tree_map

from multigpu.ranks.recorder import Current
from multigpu.ranks.stage_spans import WatchedStage
from multigpu.training.strategy import LossFn, StepLoss, modes_kept


@dataclass(frozen=True)
class Layout:
    """The place of each row of a batch."""

    counts: tuple[int, ...]  # rows that count, of each micro-batch
    size: int  # rows of every micro-batch, padding included

    @classmethod
    def of(cls, rows: int, micro_batches: int) -> Layout:
        """`rows` in equal parts: sizes differ by one at most, and may be 0."""
        each, more = divmod(rows, micro_batches)
        counts = tuple(each + (number < more) for number in range(micro_batches))
        return cls(counts, max(counts))

    @cached_property
    def places(self) -> Tensor:
        """The row of the batch at each place: int64 (micro-batches · size,)."""
        counts = torch.tensor(self.counts)[:, None]
        within = torch.arange(self.size).minimum((counts - 1).clamp(min=0))
        began = counts.cumsum(0) - counts
        return (began + within).clamp(max=sum(self.counts) - 1).flatten()

    @property
    def is_full(self) -> bool:
        """Whether no micro-batch has to be padded."""
        return min(self.counts) == self.size

    def pad(self, inputs: Any) -> Any:
        """A batch's inputs, each micro-batch padded to `size` rows."""
        if self.is_full:
            return inputs
        return tree_map(lambda rows: rows[self.places.to(rows.device)], inputs)

    def part(self, values: Any, number: int) -> Any:
        """The rows of a batch (not padded) that belong to one micro-batch."""
        began = sum(self.counts[:number])
        return tree_map(lambda rows: rows[began : began + self.counts[number]], values)

    def unpad_one(self, outputs: Any, number: int) -> Any:
        """One micro-batch's outputs without those of the padding."""
        count = self.counts[number]
        for rows in tree_leaves(outputs) if count < self.size else ():
            if not rows.dim() or len(rows) != self.size:
                raise ValueError(
                    f"the model's output has the shape {tuple(rows.shape)} for {self.size} rows, "
                    "but its first dimension must count the rows: the padding of a micro-batch is "
                    "dropped there. To need no padding, choose a batch_size that is divisible by "
                    "micro_batches, and a number of rows that is divisible by batch_size."
                )
        return outputs if count == self.size else tree_map(lambda rows: rows[:count], outputs)

    def unpad(self, outputs: Any) -> Any:
        """The outputs of all micro-batches together, without those of the padding."""
        if self.is_full:
            return outputs
        counts = torch.tensor(self.counts)
        keep = (torch.arange(self.size) < counts[:, None]).flatten()  # (micro-batches · size,)
        return tree_map(lambda rows: rows[keep.to(rows.device)], outputs)


Autocast = Callable[[], contextlib.AbstractContextManager[Any]]
Flows = list[tuple[Tensor, ...]]  # into each stage, and out of the last one; without numbers


def flows_between(
    stages: Mapping[int, nn.Module],
    inputs: tuple[Tensor, ...],
    *,
    num_stages: int,
    device: torch.device,
    autocast: Autocast,
) -> Flows:
    """The inputs of each stage, and the last one's outputs, for a micro-batch `inputs`.

    Every rank calls it with its own `stages`, by their number, and all get the same result: tensors
    on the device "meta". The dtype of a stage's outputs depends on `autocast`.
    """
    gpus = [device] if device.type == "cuda" else []
    flows: Flows = [described(inputs)]
    with torch.random.fork_rng(devices=gpus), modes_kept(*stages.values()), torch.enable_grad():
        for number in range(num_stages):
            box: list[Any] = [None]
            if number in stages:
                given = inputs if number == 0 else [zeros_like(flow, device) for flow in flows[-1]]
                with autocast():
                    box[0] = described(as_tuple(stages[number].eval()(*given)))
            dist.broadcast_object_list(box, src=number % dist.get_world_size())
            flows.append(box[0])
    return flows


def described(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Tensors with the same shape and dtype, but without numbers and memory."""
    return tuple(zeros_like(tensor, torch.device("meta")) for tensor in tensors)


def zeros_like(tensor: Tensor, device: torch.device) -> Tensor:
    """The same shape, dtype and requires_grad on another device, contiguous."""
    like = torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)
    return like.requires_grad_(tensor.requires_grad)


def as_tuple(outputs: Any) -> tuple[Tensor, ...]:
    """A stage's outputs as a tuple of tensors.  Raises TypeError for anything else."""
    found = tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)
    for each in found:
        if not isinstance(each, Tensor):
            raise TypeError(
                f"a stage of the pipeline returned a {type(each).__name__}. Only tensors can be "
                "sent between stages, and the model's output must be a tensor or a tuple of tensors"
            )
    return found


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
        inputs: tuple[Tensor, ...],
        *,
        num_stages: int,
        schedule: str,
        micro_batches: int,
        device: torch.device,
        autocast: Autocast,
        backward: bool,
    ) -> None:
        """`stages`: this rank's, by their number; `inputs`: a micro-batch of the shape.

        `backward`: for training; else for an evaluation, which has no loss here.
        """
        self.autocast = autocast
        self.flows = flows_between(
            stages, inputs, num_stages=num_stages, device=device, autocast=autocast
        )
        self.has_first, self.has_last = 0 in stages, num_stages - 1 in stages
        pieces = [
            PipelineStage(
                self._watched(StageToSend(stage, autocast), number, micro_batches, len(stages)),
                number,
                num_stages,
                device,
                input_args=self.flows[number],
                output_args=self.flows[number + 1],
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
        self,
        inputs: Any,
        targets: Any,
        layout: Layout,
        loss_fn: LossFn,
        step: StepLoss,
        *,
        global_rows: int,
    ) -> None:
        """Add the gradients of the mean loss over `global_rows` to `.grad`, the losses to `step`.

        Ranks without the last stage have no losses.
        """
        self._layout, self._targets, self._loss_fn = layout, targets, loss_fn
        self._global_rows, self._step = global_rows, step
        places = torch.arange(len(layout.counts) * layout.size)
        self.schedule.step(
            *(as_arguments(layout.pad(inputs)) if self.has_first else ()),
            target=places if self.has_last else None,
            return_outputs=False,
        )

    def evaluate(self, inputs: Any, layout: Layout) -> Any:
        """The model's outputs for all rows; None on ranks without the last stage."""
        padded = as_arguments(layout.pad(inputs)) if self.has_first else ()
        outputs = self.schedule.step(*padded)
        return layout.unpad(outputs) if self.has_last else None

    def _loss(self, outputs: Any, places: Tensor) -> Tensor:
        """One micro-batch's share of the mean over the global batch.

        The schedule passes on its targets, which are the micro-batch's places in the batch.
        """
        number = int(places[0]) // self._layout.size
        count = self._layout.counts[number]
        if not count:  # only padding
            return 0 * torch.stack([leaf.sum() for leaf in tree_leaves(outputs)]).sum()
        with self.autocast():
            answers = self._layout.unpad_one(outputs, number)
            returned = self._loss_fn(answers, self._layout.part(self._targets, number))
        return self._step.add(returned, count, self._global_rows)


class StageToSend(nn.Module):
    """A stage as the schedule calls it: in the run's precision, with outputs that can be sent."""

    def __init__(self, stage: nn.Module, autocast: Autocast) -> None:
        super().__init__()
        self.stage, self.autocast = stage, autocast

    def forward(self, *inputs: Tensor) -> Any:
        with self.autocast():
            outputs = self.stage(*inputs)
        return tree_map(lambda value: value.contiguous(), outputs)


def as_arguments(inputs: Any) -> tuple[Any, ...]:
    """A batch's inputs as the model's positional arguments.  Raises ValueError for a dict."""
    if isinstance(inputs, dict):
        raise ValueError(
            f"mode='pipeline' does not take inputs by name ({', '.join(map(str, inputs))}), "
            "because a stage is called with positional tensors. Give rows (first, second, ..., "
            "target)."
        )
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)


class Outputs(nn.Module):
    """The pipeline as a model: the whole model's outputs on the last stage's rank, else None."""

    def __init__(self, stages: nn.Module, runners: Callable[..., tuple[Runner, Layout]]) -> None:
        super().__init__()
        self.stages, self.runners = stages, runners

    def forward(self, *inputs: Any) -> Any:
        given = inputs[0] if len(inputs) == 1 else inputs
        runner, layout = self.runners(given, backward=False)
        return runner.evaluate(given, layout)
