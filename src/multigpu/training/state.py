"""Where a run stands, and all of it as plain values, so that it can go on as if never stopped."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from multigpu.data.feeds import RowFeed
from multigpu.training import rng
from multigpu.training.agreement import everyones
from multigpu.training.resuming import (
    load_optimizer,
    notes,
    refuse_other_model,
    refuse_other_rows,
    refuse_other_run,
)
from multigpu.training.schedule import go_on
from multigpu.training.seeding import seed_rank

if TYPE_CHECKING:
    from multigpu.training.trainer import Trainer

NEW_SEEDS = 1_000_003  # more than there are ranks: seeds of different steps do not meet


@dataclass
class Position:
    """How far a run has come. The same on every rank, but for the sum of losses."""

    epoch: int = 0
    step: int = 0  # optimizer steps, over all epochs
    step_in_epoch: int = 0
    rows: int = 0  # of this epoch so far, on all ranks
    seconds: float = 0.0  # of training in this epoch so far
    loss_sum: Tensor | float = 0.0  # of this rank's rows of this epoch so far

    def advance(self, loss_sum: Tensor, rows: int) -> None:
        """One step more."""
        self.step += 1
        self.step_in_epoch += 1
        self.rows += rows
        if isinstance(self.loss_sum, float):
            self.loss_sum = torch.full_like(loss_sum, self.loss_sum, dtype=torch.float64)
        self.loss_sum += loss_sum

    def next_epoch(self) -> None:
        """Begin the next epoch."""
        self.epoch += 1
        self.step_in_epoch, self.rows, self.seconds, self.loss_sum = 0, 0, 0.0, 0.0


def capture(trainer: Trainer) -> dict[str, Any]:
    """Everything that the rest of the run depends on. Every rank calls it."""
    position, strategy = trainer.position, trainer.strategy
    sharded = trainer.config.checkpoints == "sharded"
    optimizer_state = strategy.optimizer_shards if sharded else strategy.optimizer_state
    strategy.before_evaluation()
    mine = {"rng": rng.collect(strategy.devices), "loss_sum": float(position.loss_sum)}
    return {
        "model": strategy.model_shards() if sharded else strategy.model_state(),
        "optimizer": optimizer_state(trainer.optimizer),
        "schedule": trainer.schedule.state_dict(),
        "epoch": position.epoch,
        "step": position.step,
        "step_in_epoch": position.step_in_epoch,
        "rows": position.rows,
        "seconds": position.seconds,
        "ranks": everyones(mine),
        "history": trainer.history.state_dict(),
        "early_stopping": trainer.early_stopping.state_dict(),
        "total_steps": trainer.total_steps,
        "num_rows": trainer.train_feed.num_rows,
        "world_size": trainer.launch.world_size,
        "runs_on": runs_on(trainer),
        "config": trainer.config.as_dict(),
    }


def restore(trainer: Trainer, state: dict[str, Any], *, path: Path) -> None:
    """Put `trainer` where it stood when `capture` was called. Every rank calls it.

    Rank 0 says so, and what is not exact. Raises CheckpointError where `state`, read from `path`,
    is of another model or of a run with other settings.
    """
    refuse_other_run(state["config"], trainer.config.as_dict(), path=path)
    refuse_other_rows(state["num_rows"], trainer.train_feed.num_rows, path=path)
    refuse_other_model(state["model"], trainer.strategy.model_shards(), path=path)
    if state["step"] < trainer.total_steps:
        trainer.strategy.settle(next(iter(trainer.train_feed.batches(0))), trainer.loss_fn)
    trainer.strategy.load_model_state(state["model"])
    load_optimizer(trainer.strategy, trainer.optimizer, state["optimizer"], path=path)
    go_on(trainer.schedule, state["schedule"])
    trainer.history.load_state_dict(state["history"])
    trainer.early_stopping.load_state_dict(state["early_stopping"])
    same_ranks = state["world_size"] == trainer.launch.world_size
    mine = state["ranks"][trainer.launch.rank] if same_ranks else None
    trainer.position = Position(
        epoch=state["epoch"],
        step=state["step"],
        step_in_epoch=state["step_in_epoch"],
        rows=state["rows"],
        seconds=state["seconds"],
        loss_sum=mine["loss_sum"] if mine else share_of_losses(trainer, state),
    )
    if mine:
        rng.restore(mine["rng"], devices=trainer.strategy.devices)
    else:  # no two ranks alike, and not the numbers that the run began with
        seed_rank(trainer.config.seed + NEW_SEEDS * state["step"], trainer.launch.rank)
    if trainer.launch.is_main:
        print(goes_on(trainer, state, path=path), file=sys.stderr)


def goes_on(trainer: Trainer, state: dict[str, Any], *, path: Path) -> str:
    """From where the run goes on, in words, with what is not exact."""
    step = state["step"]
    if step >= trainer.total_steps or trainer.early_stopping.should_stop:
        return f"{path}: this run is complete, with step {step}. It is not trained again."
    note = notes(
        state["runs_on"],
        runs_on(trainer),
        within_epoch=state["step_in_epoch"] > 0,
        same_batches=isinstance(trainer.train_feed, RowFeed),
    )
    where = f"epoch {state['epoch'] + 1}, step {step}"
    if trainer.config.schedule != "constant" and state["total_steps"] != trainer.total_steps:
        where += (
            f"; the learning rate now falls over {trainer.total_steps} steps, until now it was "
            f"over {state['total_steps']}, so from here on it is another one"
        )
    return f"{path}: going on from {where}{f'; {note}' if note else ''}"


def runs_on(trainer: Trainer) -> str:
    """The mode and the devices, in words."""
    return f"{trainer.strategy.mode} on {trainer.strategy.where()}"


def share_of_losses(trainer: Trainer, state: dict[str, Any]) -> float:
    """Another number of ranks: rank 0 takes all that was added up in the epoch so far."""
    losses = sum(rank["loss_sum"] for rank in state["ranks"])
    return losses if trainer.launch.is_main else 0.0
