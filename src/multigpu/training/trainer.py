"""The Trainer: the same few lines train on one GPU, on several, and on several machines.

    trainer = Trainer(model, TrainConfig(batch_size=128, epochs=5), data.train, data.test)
    history = trainer.fit()

Run by python it trains on one device; by torchrun, on one GPU per process. What differs from mode
to mode is in strategies/; what a checkpoint holds, in state.py.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from multigpu.data.feeds import Batch, Feed, feed_for
from multigpu.training.config import TrainConfig
from multigpu.training.describing import describe
from multigpu.training.devices import has_real_gpu, synchronize
from multigpu.training.early_stopping import EarlyStopping
from multigpu.training.evaluation import evaluate
from multigpu.training.gpu_meters import gpu_figures
from multigpu.training.history import History
from multigpu.training.launch import Launch
from multigpu.training.modes import (
    refuse_batch,
    refuse_figures,
    refuse_kinds,
    refuse_precision,
    refuse_targets,
    refuse_wrapped,
    resolve_mode,
)
from multigpu.training.optimizers import make_optimizer
from multigpu.training.progress import ProgressBar, progress_bar
from multigpu.training.saving import checkpoints_of, resume, save, write_history
from multigpu.training.schedule import learning_rate_of, make_schedule
from multigpu.training.seeding import deterministic_algorithms, seed_rank
from multigpu.training.state import Position
from multigpu.training.strategies import make_strategy
from multigpu.training.strategies.strategy import LossFn


class Trainer:
    """Trains one model as a `TrainConfig` says."""

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        train_data: Any,
        eval_data: Any = None,
        *,
        loss_fn: LossFn = F.cross_entropy,
        metrics: Sequence[str] = ("accuracy",),
        own: ModuleType | None = None,
    ) -> None:
        """Place and wrap `model`; nothing is trained yet.

        `train_data` and `eval_data` are data sets of `(inputs, target)` pairs, or PartitionedFiles.
        `loss_fn(outputs, targets)` is a mean over the rows. `metrics` are figured on `eval_data`
        (metrics.py has their names). `own` is a module of exercises whose wrapper is used instead
        of PyTorch's. Raises ValueError for what cannot work, before anything is computed.
        """
        refuse_kinds(model, config)
        self.config, self.launch = config, Launch.here()
        self.loss_fn = loss_fn
        self.metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        refuse_wrapped(model)
        mode = resolve_mode(config, self.launch)
        self.strategy = make_strategy(mode, config, self.launch, own=own)
        refuse_precision(config, self.strategy.device)
        self.train_feed = self._feed(train_data, shuffle=True)
        self.eval_feed = None if eval_data is None else self._feed(eval_data, shuffle=False)
        refuse_batch(config, ranks=self.strategy.world_size, rows=self.train_feed.num_rows)
        self.early_stopping = EarlyStopping(config.patience, monitor=config.monitor)
        refuse_figures(config, self.metrics, evaluated=self.eval_feed is not None)
        self.strategy.prepare(model, sample=lambda: next(iter(self.train_feed.batches(0))))
        self.total_steps = config.epochs * self.train_feed.steps_per_epoch
        if config.max_steps is not None:
            self.total_steps = min(self.total_steps, config.max_steps)
        self.optimizer = make_optimizer(self.strategy.trained, config)
        self.schedule = make_schedule(self.optimizer, config, self.total_steps)
        self.history, self.position = History(), Position()
        self.checkpoints = checkpoints_of(self)

    def fit(self) -> History:
        """Train to the end, from the folder's latest checkpoint if there is one."""
        seed_rank(self.config.seed, self.launch.rank)
        deterministic = deterministic_algorithms(self.config.deterministic)
        with deterministic, self.checkpoints or contextlib.nullcontext():
            resume(self)
            bar = progress_bar(
                self.total_steps,
                initial=self.position.step,
                shown=self.config.progress,
                is_main=self.launch.is_main,
            )
            with bar:
                while self.position.step < self.total_steps and not self.early_stopping.should_stop:
                    self._train_epoch(bar)
                    self._end_epoch(bar)
        return self.history

    def evaluate(self) -> dict[str, float]:
        """Loss and metrics on `eval_data`, exact over all ranks. Every rank calls it."""
        if self.eval_feed is None:
            raise ValueError("there is nothing to evaluate on: give the Trainer eval_data")
        return evaluate(
            self.strategy.evaluation_model,
            self.eval_feed,
            loss_fn=self.loss_fn,
            metrics=self.metrics,
            device=self.strategy.device,
            inputs_device=self.strategy.inputs_device,
            autocast=self.strategy.autocast,
        )

    def describe(self) -> str:
        """What runs, in one line: mode, devices, batch, learning rate, size."""
        return describe(self)

    def _train_epoch(self, bar: ProgressBar) -> None:
        """Train from where the run stands to the end of the epoch."""
        position = self.position
        self.strategy.plain.train()
        began = time.perf_counter() - position.seconds
        for batch in self.train_feed.batches(position.epoch, start=position.step_in_epoch):
            if position.step == 0 and self.eval_feed is not None:  # before an epoch is spent
                refuse_targets(self.metrics, batch.targets)
            position.advance(self._step(batch), batch.global_rows)
            bar.update(1)
            if position.step >= self.total_steps:
                break
            if self.config.save_every and position.step % self.config.save_every == 0:
                position.seconds = time.perf_counter() - began
                save(self, best=False)
        synchronize(self.strategy.device)
        position.seconds = time.perf_counter() - began

    def _step(self, batch: Batch) -> Tensor:
        """One optimizer step; the sum of the losses of this rank's rows."""
        self.optimizer.zero_grad()
        parts = batch.parts(self.config.accumulation_steps)
        loss_sum = self.strategy.gradients(parts, self.loss_fn)
        if self.config.clip_norm is not None:
            self.strategy.clip(self.config.clip_norm)
        self.optimizer.step()
        self.schedule.step()
        self.strategy.after_step()
        return loss_sum

    def _end_epoch(self, bar: ProgressBar) -> None:
        """Evaluate, write the history's row, save."""
        position = self.position
        self.strategy.before_evaluation()  # also where there is none: ranks end with one model
        row = self._row()
        self._warn_of_a_diverged(row)
        figures = {} if self.eval_feed is None else self.evaluate()
        row |= {f"eval_{name}": value for name, value in figures.items()}
        self.history.add(row | gpu_figures())
        bar.figures(
            **{name: row[name] for name in ("loss", f"eval_{self.config.monitor}") if name in row}
        )
        whole_epoch = position.step_in_epoch == self.train_feed.steps_per_epoch
        figures = figures or {"loss": row["loss"]}
        best = self.early_stopping.update(figures, whole_epoch=whole_epoch)
        if whole_epoch:  # not where max_steps ended the run within the epoch
            position.next_epoch()
        save(self, best=best)
        write_history(self)

    def _warn_of_a_diverged(self, row: dict[str, float | int]) -> None:
        """Say once that the loss is no number any more: nothing can be learned from then on."""
        finite_before = math.isfinite(self.history.last.get("loss", 0.0))
        if self.launch.is_main and finite_before and not math.isfinite(row["loss"]):
            warnings.warn(
                f"The loss of epoch {row['epoch']} is {row['loss']}. Look for inf and nan in the "
                "data, then begin anew with a lower learning rate or with clip_norm.",
                RuntimeWarning,
                stacklevel=4,
            )

    def _row(self) -> dict[str, float | int]:
        """The history's row about training."""
        position = self.position
        # Just after going on from an epoch's end the sum is a number, not yet a tensor.
        loss_sum = torch.as_tensor(position.loss_sum, dtype=torch.float64).to(self.strategy.device)
        total = float(self.strategy.sum_over_ranks(loss_sum.clone()))
        return {
            "epoch": position.epoch + 1,
            "step": position.step,
            "learning_rate": learning_rate_of(self.schedule, position.step),
            "loss": total / position.rows,
            "seconds": position.seconds,
            "rows_per_second": position.rows / position.seconds,
        }

    def _feed(self, data: Any, *, shuffle: bool) -> Feed:
        """This rank's feed of `data`."""
        return feed_for(
            data,
            batch_size=self.config.batch_size,
            rank=self.launch.rank if self.strategy.world_size > 1 else 0,
            world_size=self.strategy.world_size,
            seed=self.config.seed,
            shuffle=shuffle,
            workers=self.config.workers,
            pin_memory=has_real_gpu(self.strategy.device),
        )
