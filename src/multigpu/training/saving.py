"""When a run writes down where it stands, and when it goes on from there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from multigpu.training.agreement import main_rank_does
from multigpu.training.checkpoints import CheckpointError, Checkpoints
from multigpu.training.resuming import restarted
from multigpu.training.state import capture, restore

if TYPE_CHECKING:
    from multigpu.training.trainer import Trainer


def resume(trainer: Trainer) -> None:
    """Go on from the folder's latest checkpoint if there is one, and that is wanted.

    Where torchrun has started the processes again it is wanted, whatever `resume` says: their
    first start has removed what was there before.
    """
    checkpoints = trainer.checkpoints
    if checkpoints is None:
        return
    began = trainer.position.step > 0  # fit was called before: what is there is this run's own
    if not trainer.config.resume and not restarted() and not began:
        checkpoints.clear()
    for each in (checkpoints, other_kind(trainer)):
        if (state := each.load()) is None:
            continue
        restore(trainer, state, path=each.path())
        write_history(trainer)  # one killed between the checkpoint and the history lacks a row
        return


def checkpoints_of(trainer: Trainer) -> Checkpoints | None:
    """Where the run's checkpoints go: to one file each, or to a folder of shares."""
    if trainer.config.folder is None:
        return None
    sharded = trainer.config.checkpoints == "sharded"
    return make_checkpoints(trainer, trainer.config.folder, sharded=sharded)


def other_kind(trainer: Trainer) -> Checkpoints:
    """The checkpoints that a run with the other setting has left in the folder."""
    assert trainer.checkpoints is not None
    sharded = trainer.config.checkpoints != "sharded"
    return make_checkpoints(trainer, trainer.checkpoints.folder, sharded=sharded)


def make_checkpoints(trainer: Trainer, folder: str | Path, *, sharded: bool) -> Checkpoints:
    if not sharded:
        return Checkpoints(folder, launch=trainer.launch)
    from multigpu.training.sharded_checkpoints import ShardedCheckpoints

    return ShardedCheckpoints(folder, launch=trainer.launch, place=trainer.strategy.place_for)


def save(trainer: Trainer, *, best: bool) -> None:
    """Write a checkpoint. Every rank calls it, and goes on when the file is complete."""
    if trainer.checkpoints is not None:
        trainer.checkpoints.save(capture(trainer), best=best)


def write_history(trainer: Trainer) -> None:
    """Write history.csv. Every rank calls it."""
    if trainer.checkpoints is not None:
        path = trainer.checkpoints.folder / "history.csv"
        main_rank_does(lambda: trainer.history.to_csv(path), error=CheckpointError)
