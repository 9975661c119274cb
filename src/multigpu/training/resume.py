"""Where a run stands, whether it can go on from a checkpoint, and what is not exact when it does.

A run that goes on as it was started ends with the same weights as one that was never stopped. On
another number of ranks or GPUs it goes on, too; `notes` says what is not the same then. Not exact
within an epoch, either: a data set that transforms its rows at random in DataLoader workers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from multigpu.training.checkpoint import CheckpointError
from multigpu.training.strategy import StepLoss

# What may change from one part of a run to the next; everything else belongs to the run.
FREE = (
    "mode",
    "gpus",
    "backend",
    "accumulation_steps",
    "micro_batches",
    "pipeline_schedule",
    "stages_per_rank",
    "balance",
    "stage_memory",
    "epochs",
    "max_steps",
    "patience",
    "deterministic",
    "find_unused_parameters",
    "folder",
    "save_every",
    "checkpoints",
    "resume",
    "workers",
    "progress",
)
SHOWN = 3  # parameters that a message names
WAY_OUT = "or give this run another folder, or begin anew there with resume=False."


@dataclass
class Position:
    """How far a run has come. The same on every rank, but for the losses."""

    epoch: int = 0
    step: int = 0  # optimizer steps, over all epochs
    step_in_epoch: int = 0
    rows: int = 0  # of this epoch so far, on all ranks
    seconds: float = 0.0  # of training in this epoch so far
    loss_sum: Tensor | float = 0.0  # of this rank's rows of this epoch so far
    loss_weight: Tensor | float = 0.0  # what it is to be divided by: their number, mostly

    def advance(self, loss: StepLoss, rows: int) -> None:
        """One step more, with `rows` rows on all ranks."""
        self.step += 1
        self.step_in_epoch += 1
        self.rows += rows
        self.loss_sum = self.loss_sum + loss.sum
        self.loss_weight = self.loss_weight + loss.weight

    def next_epoch(self) -> None:
        """Begin the next epoch."""
        self.epoch += 1
        self.step_in_epoch, self.rows, self.seconds = 0, 0, 0.0
        self.loss_sum = self.loss_weight = 0.0


def restarted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether torchrun has started this run's processes again after one of them failed."""
    return int(environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def refuse_other_run(saved: Mapping[str, Any], config: Mapping[str, Any], *, path: Path) -> None:
    """Raise CheckpointError where the checkpoint's settings are not those of this run."""
    changed = [
        f"{name}={saved[name]!r} (now {value!r})"
        for name, value in config.items()
        if name in saved and name not in FREE and saved[name] != value
    ]
    if changed:
        raise CheckpointError(
            f"{path} is of a run with {', '.join(changed)}. Go on with the same settings, {WAY_OUT}"
        )


def refuse_other_rows(saved: int, rows: int, *, path: Path) -> None:
    """Raise CheckpointError where the data is not what the checkpoint's run has trained on."""
    if saved != rows:
        raise CheckpointError(
            f"{path} is of a run on {saved:,} rows, and this data has {rows:,}: its place in the "
            f"epoch means nothing here. Give the same data, {WAY_OUT}"
        )


def refuse_other_model(saved: Mapping[str, Any], model: Mapping[str, Any], *, path: Path) -> None:
    """Raise CheckpointError where a checkpoint's weights have other names or shapes than a model's.

    Both are state dicts, or what `shapes_of` makes of one.
    """
    shapes, found = shapes_of(model), shapes_of(saved)
    problems = [
        *(f"{name} {shape} is missing" for name, shape in shapes.items() if name not in found),
        *(f"{name} {shape} is too many" for name, shape in found.items() if name not in shapes),
        *(
            f"{name} is {found[name]} there and {shape} here"
            for name, shape in shapes.items()
            if name in found and found[name] != shape
        ),
    ]
    if problems:
        more = f", and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise CheckpointError(
            f"{path} is of another model: {'; '.join(problems[:SHOWN])}{more}. Build the model as "
            f"it was, {WAY_OUT}"
        )


def shapes_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """The shapes of a state dict's tensors; a module may keep other things in its state, too."""
    return {
        name: tuple(value.shape)
        if isinstance(value, Tensor)
        else value
        if isinstance(value, tuple)
        else "no tensor"
        for name, value in state.items()
    }


def notes(saved: str, now: str, *, within_epoch: bool, same_batches: bool) -> str:
    """What is not exact where a run goes on in another way than it was saved; "" if all is.

    `saved` and `now` describe on what it ran and runs; `same_batches`: the feed gives the same
    global batches whatever the number of ranks.
    """
    if saved == now:
        return ""
    said = (
        f"saved by {saved}, goes on as {now}. Weights, optimizer, learning rate, epoch and step "
        "come back. Not exact: dropout draws other numbers; sums are rounded in another order"
    )
    if within_epoch and not same_batches:
        said += (
            "; the ranks share out this epoch's rows anew, so some come twice and some not at all"
        )
    return f"{said}."
