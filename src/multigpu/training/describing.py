"""A run in one line, before it starts: what each GPU gets to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from multigpu.training.config import TrainConfig
from multigpu.training.schedule import scaled_learning_rate

if TYPE_CHECKING:
    from multigpu.training.trainer import Trainer


def describe(trainer: Trainer) -> str:
    """Mode, devices, the batch and each GPU's part of it, learning rate, size."""
    config, strategy, feed = trainer.config, trainer.strategy, trainer.train_feed
    parameters = sum(parameter.numel() for parameter in strategy.plain.parameters())
    return "; ".join(
        [
            f"{strategy.mode} on {strategy.where()}",
            f"batch {config.batch_size}{shares(config, strategy.copies)}",
            f"learning rate {scaled_learning_rate(config):g}",
            f"{parameters:,} parameters",
            f"{feed.num_rows:,} rows, {feed.steps_per_epoch:,} steps an epoch",
        ]
    )


def shares(config: TrainConfig, copies: int) -> str:
    """How the batch is divided: on 2 GPUs " = 2 × 64"; on 3 GPUs ", at most 43 on each GPU"."""
    steps = config.accumulation_steps
    if copies == steps == 1:
        return ""
    if config.batch_size % (copies * steps):
        return f", at most {-(-config.batch_size // copies)} on each GPU"
    factors = [number for number in (copies, steps) if number > 1]
    each = config.batch_size // (copies * steps)
    return " = " + " × ".join(str(number) for number in [*factors, each])
