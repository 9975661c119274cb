"""Whether a run can go on from a checkpoint, and what is not exact when it does.

A run that goes on as it was started ends with the same weights as one that was never stopped. On
another number of ranks or GPUs it goes on, too; `notes` says what is not the same then. Not exact
within an epoch, either: a data set that transforms its rows at random in DataLoader workers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from multigpu.training.checkpoints import CheckpointError

if TYPE_CHECKING:
    from multigpu.training.strategies.strategy import Strategy

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
            f"{path} is of a run with {', '.join(changed)}. Go on with the same settings, or give "
            "this run another folder, or begin anew there with resume=False."
        )


def refuse_other_rows(saved: int, rows: int, *, path: Path) -> None:
    """Raise CheckpointError where the data is not what the checkpoint's run has trained on."""
    if saved != rows:
        raise CheckpointError(
            f"{path} is of a run on {saved:,} rows, and this data has {rows:,}: its place in the "
            "epoch means nothing here. Give the same data, or give this run another folder, or "
            "begin anew there with resume=False."
        )


def refuse_other_model(saved: Mapping[str, Any], model: Mapping[str, Any], *, path: Path) -> None:
    """Raise CheckpointError where the checkpoint's weights are not those of this model."""
    shapes = {name: shape_of(value) for name, value in model.items()}
    found = {name: shape_of(value) for name, value in saved.items()}
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
            "it was, or give this run another folder, or begin anew there with resume=False."
        )


def shape_of(value: Any) -> tuple[int, ...] | str:
    """The shape of a tensor; a module may keep other things in its state, too."""
    return tuple(value.shape) if isinstance(value, Tensor) else "no tensor"


def load_optimizer(
    strategy: Strategy, optimizer: torch.optim.Optimizer, saved: dict[str, Any], *, path: Path
) -> None:
    """Put its state back.  Raises CheckpointError where other parameters are trained."""
    try:
        strategy.load_optimizer_state(optimizer, saved)
    except ValueError as problem:
        raise CheckpointError(
            f"{path} is of a run that trained other parameters: {problem}. Freeze the same ones, "
            "or give this run another folder, or begin anew there with resume=False."
        ) from problem


def notes(saved: str, now: str, *, within_epoch: bool, same_batches: bool) -> str:
    """What is not exact where a run goes on in another way than it was saved; "" if all is.

    `saved` and `now` describe on what it ran and runs; `same_batches`: the feed gives the same
    global batches whatever the number of ranks.
    """
    if saved == now:
        return ""
    lines = [
        f"saved by {saved}, goes on as {now}. Weights, optimizer, learning rate, epoch and step",
        "come back. Not exact: dropout draws other numbers; sums are rounded in another order",
    ]
    if within_epoch and not same_batches:
        lines.append(
            "; the ranks share out this epoch's rows anew, so some come twice and some not at all"
        )
    return " ".join(lines).replace(" ;", ";") + "."
