"""A run in one line, before it starts: what each GPU gets to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from multigpu.training.schedule import scaled_learning_rate

if TYPE_CHECKING:
    from multigpu.training.strategies.strategy import Strategy
    from multigpu.training.trainer import Trainer


def describe(trainer: Trainer) -> str:
    """Mode, devices, the batch and each GPU's part of it, learning rate, size."""
    config, strategy, feed = trainer.config, trainer.strategy, trainer.train_feed
    return "; ".join(
        [
            f"{strategy.mode} on {strategy.where()}",
            f"batch {config.batch_size}{shares(strategy)}",
            f"learning rate {scaled_learning_rate(config):g}",
            f"{strategy.num_parameters:,} parameters",
            f"{feed.num_rows:,} rows, {feed.steps_per_epoch:,} steps an epoch",
            *strategy.remarks(),
        ]
    )


def shares(strategy: Strategy) -> str:
    """How a batch is divided: " = 2 ranks × 64 rows", or ", at most 43 rows on each of 3 GPUs"."""
    size, copies = strategy.config.batch_size, strategy.copies
    parts, micro_batches = strategy.config.accumulation_steps, strategy.micro_batches
    what = "rank" if strategy.world_size > 1 else "GPU"
    if copies == parts == micro_batches == 1:
        return ""
    if micro_batches > 1:
        each = -(-size // (parts * micro_batches))
        most = "at most " if size % (parts * micro_batches) else ""
        before = f"{parts} parts × " if parts > 1 else ""
        return f" = {before}{micro_batches} micro-batches × {most}{each} rows"
    if size % (copies * parts):
        return f", at most {-(-size // copies)} rows on each of {copies} {what}s"
    counted = [(copies, what), (parts, "part")]
    factors = [f"{number} {name}s" for number, name in counted if number > 1]
    return " = " + " × ".join([*factors, f"{size // (copies * parts)} rows"])
