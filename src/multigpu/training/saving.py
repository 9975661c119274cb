"""When a run writes down where it stands, and when it goes on from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from multigpu.training.agreement import main_rank_does
from multigpu.training.checkpoints import CheckpointError
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
    if (state := checkpoints.load()) is not None:
        restore(trainer, state, path=checkpoints.path())
        write_history(trainer)  # one killed between the checkpoint and the history lacks a row


def save(trainer: Trainer, *, best: bool) -> None:
    """Write a checkpoint. Every rank calls it, and goes on when the file is complete."""
    if trainer.checkpoints is not None:
        trainer.checkpoints.save(capture(trainer), best=best)


def write_history(trainer: Trainer) -> None:
    """Write history.csv. Every rank calls it."""
    if trainer.checkpoints is not None:
        path = trainer.checkpoints.folder / "history.csv"
        main_rank_does(lambda: trainer.history.to_csv(path), error=CheckpointError)
