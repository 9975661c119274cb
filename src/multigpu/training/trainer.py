"""The Trainer: the same few lines train on one GPU, on several, and on several machines.

    trainer = Trainer(model, TrainConfig(batch_size=128, epochs=5), data.train, data.test)
    history = trainer.fit()

Run by python it trains on one device; by torchrun, on one GPU per process. What differs from mode
to mode is in the strategies: single.py, dp.py, ddp.py, fsdp.py and pipeline.py.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from multigpu.data.feeds import Collate, DataSetFeed, Feed, feed_for
from multigpu.devices import current_machine
from multigpu.training import randomness
from multigpu.training.checkpoint import (
    CheckpointError,
    Checkpoints,
    refuse_other_model,
    refuse_other_run,
    shapes_of,
)
from multigpu.training.config import (
    MODES,
    OF_EACH_RANK,
    OF_THE_RUN,
    TrainConfig,
    check_choice,
    refuse_batch,
    resolve_mode,
)
from multigpu.training.distributed import (
    Launch,
    all_gather_object,
    from_main_rank,
    main_rank_does,
    restarted,
)
from multigpu.training.evaluate import MetricChoice, Metrics, evaluate
from multigpu.training.history import EarlyStopping, History, ProgressBar, gpu_figures
from multigpu.training.loss import ClassLoss, LossFn, StepLoss, exact_over_parts
from multigpu.training.optimizer import (
    MakeOptimizer,
    MakeSchedule,
    make_optimizer,
    make_schedule,
    refuse_replaced,
    restore_schedule,
)
from multigpu.training.own import make_own
from multigpu.training.strategy import Strategy, synchronize

ASK_EVERY = 10  # steps after which ranks ask each other whether one of them was told to end
# Fields of a Position.
SAME_ON_ALL_RANKS = ("epoch", "step", "step_in_epoch", "rows", "seconds", "learning_rate")
# Of checkpoints, with the name of its latest.
OTHER_KIND = {"full": ("sharded", "latest"), "sharded": ("full", "latest.pt")}
NEW_SEEDS = 1_000_003  # more than there are ranks: seeds of different steps do not meet


@dataclass
class Position:
    """The progress of a run. The same on every rank, except for the losses."""

    epoch: int = 0
    step: int = 0  # optimizer steps, over all epochs
    step_in_epoch: int = 0
    rows: int = 0  # of this epoch so far, on all ranks
    seconds: float = 0.0  # of training in this epoch so far
    learning_rate: float = 0.0  # of the latest step
    loss_sum: Tensor | float = 0.0  # of this rank's rows of this epoch so far
    loss_weight: Tensor | float = 0.0  # its divisor: usually the number of rows

    def advance(self, loss: StepLoss, rows: int) -> None:
        """Count one step, with `rows` rows on all ranks."""
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


def choose_strategy(
    model: nn.Module, config: TrainConfig, *, own: ModuleType | None = None
) -> Strategy:
    """The strategy for `model` with the mode that `config` selects in this process.

    `own` is a module of exercises: its functions or classes replace PyTorch's wrapper. Raises
    ValueError for a model or settings that cannot work here.
    """
    refuse_wrapped(model)
    launch = Launch.here()
    mode = resolve_mode(config, launch)
    strategy: Strategy
    if own is not None:
        strategy = make_own(mode, config, launch, own)
    else:  # its module is imported only now, as some take a second
        module, _, name = MODES[mode].partition(":")
        made = getattr(importlib.import_module(f"multigpu.training.{module}"), name)
        strategy = made(config, launch)
    strategy.refuse_precision()
    return strategy


class Trainer:
    """Trains one model according to a `TrainConfig`."""

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        train_data: Any,
        eval_data: Any = None,
        *,
        loss_fn: LossFn = F.cross_entropy,
        metrics: MetricChoice = ("accuracy",),
        optimizer: MakeOptimizer | None = None,
        schedule: MakeSchedule | None = None,
        collate_fn: Collate | None = None,
        callbacks: Sequence[Any] = (),
        own: ModuleType | None = None,
    ) -> None:
        """Place and wrap `model`; nothing is trained yet.

        `train_data` and `eval_data` are data sets of `(inputs, target)` pairs or of dicts with
        "labels", PartitionedFiles, or DataLoaders. A DataLoader gives its data set, its collate_fn
        and its number of workers; its sampler and its batch size are replaced. `collate_fn` makes a
        batch from a list of rows. `loss_fn(outputs, targets)` is a mean over the rows, or a pair: a
        sum, and the weight to divide it by; PyTorch's own classification losses may ignore rows or
        have weights. `metrics` are computed on `eval_data`: names that evaluate.py has, or a
        mapping from names to functions `(outputs, targets)` or to metrics of torchmetrics.
        `optimizer(parameters)` and `schedule(optimizer, total_steps)` make an optimizer, of a list
        of the parameters that this process trains, and an LRScheduler, which is stepped after each
        optimizer step. `callbacks` have `on_step(trainer, loss)`, `on_epoch(trainer, row)` or both,
        which are called on every rank. `own` is a module of exercises whose wrapper is used instead
        of PyTorch's. Raises ValueError for settings that cannot work, before anything is computed.
        """
        if not any(each.requires_grad for each in model.parameters()):
            raise ValueError(
                "no parameter of the model requires a gradient, so there is nothing to train"
            )
        self.config = config
        if isinstance(metrics, str):
            metrics = (metrics,)
        self.metrics = metrics if isinstance(metrics, Mapping) else tuple(metrics)
        self.collate_fn = collate_fn
        for each in callbacks:
            if isinstance(each, type) or not {"on_step", "on_epoch"} & set(dir(each)):
                raise TypeError(
                    f"callbacks has {each!r}: give an object with a method on_step(trainer, loss) "
                    "or on_epoch(trainer, row)"
                )
        self.on_step = [each.on_step for each in callbacks if hasattr(each, "on_step")]
        self.on_epoch = [each.on_epoch for each in callbacks if hasattr(each, "on_epoch")]
        functions = {"optimizer": optimizer, "schedule": schedule}
        self.made_by = {what: "a function" for what, each in functions.items() if each is not None}
        for what in self.made_by:
            refuse_replaced(config, what)
        self.strategy = choose_strategy(model, config, own=own)
        self.launch = self.strategy.launch
        if self.strategy.mode == "pipeline" and optimizer is not None:
            raise ValueError(
                "optimizer= with mode='pipeline': its checkpoints number the parameters of all "
                "stages as one group. Choose one of TrainConfig(optimizer=...)."
            )
        parts = self.strategy.world_size * self.strategy.micro_batches * config.accumulation_steps
        rows = train_data if collate_fn is None else None  # it may change the targets
        self.loss_fn = exact_over_parts(loss_fn, rows, divided=parts > 1)
        self.train_feed = self._feed(train_data, shuffle=True)
        self.eval_feed = None if eval_data is None else self._feed(eval_data, shuffle=False)
        self.shapes = shapes_of(model.state_dict())
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        self._refuse_other_ranks()
        refuse_batch(config, ranks=self.strategy.world_size, rows=self.train_feed.num_rows)
        self.early_stopping = EarlyStopping(config.patience, monitor=config.monitor)
        if self.eval_feed is not None:
            Metrics(self.metrics)  # refuses a name that is not there
            check_choice("monitor", config.monitor, ("loss", *self.metrics))
        elif config.evaluate_every is not None or config.monitor != "loss":
            raise ValueError(
                f"evaluate_every={config.evaluate_every} and monitor={config.monitor!r}: without "
                "eval_data there is only the training loss, at the end of each epoch. Give "
                "eval_data, or leave them out."
            )
        self.strategy.prepare(model, sample=lambda: next(iter(self.train_feed.batches(0))))
        self.total_steps = config.epochs * self.train_feed.steps_per_epoch
        if config.max_steps is not None:
            self.total_steps = min(self.total_steps, config.max_steps)
        self.optimizer = make_optimizer(self.strategy.plain, config, optimizer)
        self.schedule = make_schedule(self.optimizer, config, self.total_steps, schedule)
        self.history, self.position = History(config.evaluate_every), Position()
        self.told_to_end = False
        self.checkpoints: Checkpoints | None = None
        if config.folder is not None:
            self.checkpoints = self._checkpoints_in(Path(config.folder), config.checkpoints)

    def fit(self) -> History:
        """Train to the end, from the folder's latest checkpoint if there is one.

        Each epoch begins with `model.train()`, which puts frozen parts into training mode, too; a
        part that must stay in evaluation mode overrides its `train`. With a folder, SIGTERM, which
        a cluster sends before it takes a machine away, saves a checkpoint after one of the next ten
        steps, and raises SystemExit(143).
        """
        randomness.seed_rank(self.config.seed, self.launch.rank)
        deterministic = randomness.deterministic_algorithms(self.config.deterministic)
        with deterministic, self.checkpoints or contextlib.nullcontext(), self._sigterm_noted():
            self._resume()
            if self.position.step == 0 and self.eval_feed is not None and self.metrics:
                # An evaluation that cannot work fails here, before an epoch is spent.
                self.evaluate(batches=1)
            bar = ProgressBar(
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

    def evaluate(self, *, batches: int | None = None) -> dict[str, float]:
        """Loss and metrics on `eval_data`, or on this many batches of it, exact over all ranks.

        Every rank calls it.
        """
        if self.eval_feed is None:
            raise ValueError("there is no data to evaluate on: pass eval_data to the Trainer")
        return evaluate(
            self.strategy.evaluation_model,
            self.eval_feed,
            loss_fn=self.loss_fn,
            metrics=self.metrics,
            device=self.strategy.device,
            place=self.strategy.place,
            autocast=self.strategy.autocast,
            batches=batches,
        )

    def describe(self) -> str:
        """The run in one line: mode, devices, batch, learning rate, size."""
        feed, strategy, group = self.train_feed, self.strategy, self.optimizer.param_groups[0]
        rate = group.get("initial_lr", group["lr"])  # before a schedule changed it
        return "; ".join(
            [
                str(strategy),
                f"batch {self.config.batch_size}{strategy.shares()}",
                f"learning rate {rate:g}",
                f"{self.num_parameters:,} parameters",
                f"{feed.num_rows:,} rows, {feed.steps_per_epoch:,} steps an epoch",
                *strategy.remarks,
            ]
        )

    def _train_epoch(self, bar: ProgressBar) -> None:
        """Train from the current position to the end of the epoch."""
        config, strategy, position = self.config, self.strategy, self.position
        strategy.plain.train()
        began = time.perf_counter() - position.seconds
        for batch in self.train_feed.batches(position.epoch, start=position.step_in_epoch):
            self.optimizer.zero_grad()
            parts = batch.parts(config.accumulation_steps)
            loss = strategy.forward_backward(parts, self.loss_fn)
            # With several groups of parameters, the rate of the first.
            position.learning_rate = float(self.optimizer.param_groups[0]["lr"])
            strategy.step(self.optimizer)
            self.schedule.step()
            position.advance(loss, batch.global_rows)
            position.seconds = time.perf_counter() - began
            bar.update(1)
            for call_back in self.on_step:
                call_back(self, loss.mean)
            if position.step >= self.total_steps:
                break
            within = position.step_in_epoch < self.train_feed.steps_per_epoch
            if config.evaluate_every and position.step % config.evaluate_every == 0 and within:
                synchronize(strategy.device)
                position.seconds = time.perf_counter() - began
                self._add_row(bar)
                began = time.perf_counter() - position.seconds
            if config.save_every and position.step % config.save_every == 0:
                self._save(best=False)
            if self._should_end():
                self._save(best=False)
                if self.launch.is_main:
                    where = self.checkpoints and self.checkpoints.folder
                    print(f"SIGTERM: saved in {where} at step {position.step}", file=sys.stderr)
                raise SystemExit(128 + signal.SIGTERM)
        synchronize(strategy.device)
        position.seconds = time.perf_counter() - began

    @contextlib.contextmanager
    def _sigterm_noted(self) -> Iterator[None]:
        """SIGTERM does not end the process at once, so that what was trained can be saved."""
        self.told_to_end = False
        if self.checkpoints is None or threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(*_: Any) -> None:
            self.told_to_end = True

        before = signal.signal(signal.SIGTERM, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
        if self.told_to_end:  # the last step was done before it was noticed
            signal.raise_signal(signal.SIGTERM)

    def _should_end(self) -> bool:
        """Whether a rank was told to end.  Ranks agree, since all of them write a checkpoint."""
        if self.checkpoints is None or self.launch.world_size == 1:
            return self.told_to_end
        if self.position.step % ASK_EVERY:
            return False
        told = torch.tensor(float(self.told_to_end), device=self.strategy.device)
        dist.all_reduce(told)
        return bool(told)

    def _end_epoch(self, bar: ProgressBar) -> None:
        """Evaluate, write the history's row and save."""
        position = self.position
        figures = self._add_row(bar)
        whole_epoch = position.step_in_epoch == self.train_feed.steps_per_epoch
        best = self.early_stopping.update(figures, whole_epoch=whole_epoch)
        if whole_epoch:  # not where max_steps ended the run within the epoch
            position.next_epoch()
        self._save(best=best)
        self._write_history()

    def _add_row(self, bar: ProgressBar) -> dict[str, float]:
        """Evaluate, and add the history's row. Returns the figures that can be monitored."""
        # Also without eval_data, because the ranks must end with one model.
        self.strategy.before_evaluation_or_save()
        row = self._row()
        figures = {} if self.eval_feed is None else self.evaluate()
        row |= {f"eval_{name}": value for name, value in figures.items()}
        self._warn_of_nan(row)
        self.history.add(row | gpu_figures())
        for call_back in self.on_epoch:
            call_back(self, self.history.last)
        shown = ("loss", f"eval_{self.config.monitor}")
        bar.figures(**{name: row[name] for name in shown if name in row})
        return figures or {"loss": row["loss"]}

    def _warn_of_nan(self, row: dict[str, float | int]) -> None:
        """Warn once if the figure is not a number, because then no epoch can be the best."""
        for name in ("loss", "eval_loss", f"eval_{self.config.monitor}"):
            before, now = self.history.last.get(name, 0.0), row.get(name, 0.0)
            if self.launch.is_main and math.isfinite(before) and not math.isfinite(now):
                warnings.warn(
                    f"The {name} of epoch {row['epoch']} is {now}. Look for inf and nan in the "
                    "data and in the outputs, then begin again with a lower learning rate or with "
                    "clip_norm.",
                    RuntimeWarning,
                    stacklevel=5,
                )
                return

    def _row(self) -> dict[str, float | int]:
        """The history's row about training."""
        position = self.position
        mine = [float(position.loss_sum), float(position.loss_weight)]
        losses = torch.tensor(mine, dtype=torch.float64, device=self.strategy.device)
        total, weight = self.strategy.sum_over_ranks(losses)
        return {
            "epoch": position.epoch + 1,
            "step": position.step,
            "learning_rate": position.learning_rate,
            "loss": float(total / weight),
            "seconds": position.seconds,
            "rows_per_second": position.rows / position.seconds,
        }

    def _refuse_other_ranks(self) -> None:
        """Raise ValueError on every rank if ranks have different models, data or settings.

        They would take different numbers of steps and wait for each other forever, or abort.
        """
        config = self.config.as_dict()
        mine = {
            **{name: value for name, value in config.items() if name not in OF_EACH_RANK},
            "a folder": self.config.folder is not None,
            "rows of train_data": self.train_feed.num_rows,
            "rows of eval_data": None if self.eval_feed is None else self.eval_feed.num_rows,
            "metrics": tuple(self.metrics),
            **{f"a function {what}=": True for what in self.made_by},
            "a loss that returns sums": isinstance(self.loss_fn, ClassLoss),
            **{f"the model's {name}": shape for name, shape in self.shapes.items()},
        }
        first, *others = all_gather_object(mine)
        for rank, theirs in enumerate(others, start=1):
            for what in first | theirs:
                if first.get(what) != theirs.get(what):
                    raise ValueError(
                        f"rank {rank} has {what} = {theirs.get(what)}, but rank 0 has "
                        f"{first.get(what)}. Give every rank the same model, data and settings; "
                        "the Trainer decides which rows each rank gets."
                    )

    def _feed(self, data: Any, *, shuffle: bool) -> Feed:
        real_gpu = self.strategy.device.type == "cuda" and not current_machine().is_virtual
        return feed_for(
            data,
            batch_size=self.config.batch_size,
            rank=self.strategy.share,
            world_size=self.strategy.world_size,
            seed=self.config.seed,
            shuffle=shuffle,
            workers=self.config.workers,
            collate_fn=self.collate_fn,
            drop_last=self.config.drop_last and shuffle,  # an evaluation is of all rows
            pin_memory=real_gpu,  # it then fetches rows from the computer's memory by itself
        )

    # Checkpoints: all ranks call each of these.

    def _checkpoints_in(self, folder: Path, kind: str) -> Checkpoints:
        how: dict[str, Any] = {"launch": self.launch, "keep_last": self.config.keep_last}
        if kind == "full":
            return Checkpoints(folder, **how)
        from multigpu.training.sharded_checkpoint import ShardedCheckpoints

        return ShardedCheckpoints(folder, **how, strategy=self.strategy)

    def _save(self, *, best: bool) -> None:
        """Write a checkpoint, and return when it is complete."""
        if self.checkpoints is not None:
            self.checkpoints.save(self._state(), best=best)

    def _write_history(self) -> None:
        if self.checkpoints is not None:
            path = self.checkpoints.folder / "history.csv"
            main_rank_does(lambda: self.history.to_csv(path), error=CheckpointError)

    def _resume(self) -> None:
        """Resume from the folder's latest checkpoint if there is one and `resume` is set.

        After a restart by torchrun it resumes whatever `resume` is, because the first start has
        removed older checkpoints.
        """
        if self.checkpoints is None:
            return
        began = self.position.step > 0  # fit was called before: what is there is this run's own
        if not self.config.resume and not restarted() and not began:
            self.checkpoints.clear()
        checkpoints = self.checkpoints
        state = checkpoints.load()
        if state is None:
            other, name = OTHER_KIND[self.config.checkpoints]
            # Looked for first, because sharded checkpoints take a second to import.
            if from_main_rank((checkpoints.folder / name).exists()):
                checkpoints = self._checkpoints_in(checkpoints.folder, other)
                state = checkpoints.load()
        if state is not None:
            self._restore(state, path=checkpoints.path())
            self._write_history()  # one killed between checkpoint and history lacks a row

    def _state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, in tensors and plain values."""
        position, strategy = self.position, self.strategy
        strategy.before_evaluation_or_save()
        whole = self.config.checkpoints == "full"
        mine = {
            "rng": randomness.collect(strategy.devices),
            "loss_sum": float(position.loss_sum),
            "loss_weight": float(position.loss_weight),
        }
        return {
            "model": strategy.model_state(whole=whole),
            "optimizer": strategy.optimizer_state(self.optimizer, whole=whole),
            "schedule": self.schedule.state_dict(),
            "scaler": strategy.scaler.state_dict(),
            **{name: getattr(position, name) for name in SAME_ON_ALL_RANKS},
            "ranks": all_gather_object(mine),
            "history": self.history.state_dict(),
            "early_stopping": self.early_stopping.state_dict(),
            "total_steps": self.total_steps,
            "num_rows": self.train_feed.num_rows,
            "world_size": self.launch.world_size,
            "runs_on": str(strategy),
            "config": self.config.as_dict() | self.made_by,
        }

    def _restore(self, state: dict[str, Any], *, path: Path) -> None:
        """Resume from what `_state` returned. Rank 0 reports it, and what is not exact.

        Raises CheckpointError if `state`, read from `path`, belongs to another model or to a run
        with other settings.
        """
        strategy, rank = self.strategy, self.launch.rank
        saved = {**state["config"], "rows of data": state["num_rows"]}
        now = {name: getattr(self.config, name) for name in OF_THE_RUN} | self.made_by
        now["rows of data"] = self.train_feed.num_rows
        refuse_other_run(saved, now, path=path)
        refuse_other_model(state["model"], self.shapes, path=path)
        if state["step"] < self.total_steps:
            strategy.rebuild_buckets(next(iter(self.train_feed.batches(0))), self.loss_fn)
        strategy.load_model_state(state["model"])
        try:
            strategy.load_optimizer_state(self.optimizer, state["optimizer"])
        except ValueError as problem:
            raise CheckpointError(
                f"{path} belongs to a run that trained different parameters: {problem}. Freeze "
                "the same ones, give this run another folder, or begin again there with "
                "resume=False."
            ) from problem
        restore_schedule(self.schedule, state["schedule"])
        strategy.scaler.load_state_dict(state["scaler"])
        self.history.load_state_dict(state["history"])
        self.early_stopping.load_state_dict(state["early_stopping"])
        self.position = Position(**{name: state[name] for name in SAME_ON_ALL_RANKS})
        of_ranks = state["ranks"]
        if state["world_size"] == self.launch.world_size:
            randomness.restore(of_ranks[rank]["rng"], devices=strategy.devices)
            of_ranks = [of_ranks[rank]]
        else:  # other numbers on each rank, and not those that the run began with
            randomness.seed_rank(self.config.seed + NEW_SEEDS * state["step"], rank)
            of_ranks = of_ranks if rank == 0 else []  # it takes all losses of the epoch so far
        self.position.loss_sum = float(sum(each["loss_sum"] for each in of_ranks))
        self.position.loss_weight = float(sum(each["loss_weight"] for each in of_ranks))
        if self.launch.is_main:
            print(f"{path}: {self._resumes_words(state)}", file=sys.stderr)

    def _resumes_words(self, state: dict[str, Any]) -> str:
        """The position from which the run resumes, in words, with what is not exact."""
        step = state["step"]
        if step >= self.total_steps or self.early_stopping.should_stop:
            return f"this run is already complete at step {step}, so it is not trained again."
        where = f"resuming from epoch {state['epoch'] + 1}, step {step}"
        longer = state["total_steps"] != self.total_steps
        if longer and "schedule" in self.made_by:
            where += "; the schedule continues as it was saved"
        elif longer and self.config.schedule != "constant":
            where += (
                f"; the learning rate now falls over {self.total_steps} steps instead of "
                f"{state['total_steps']}, so it differs from here on"
            )
        if state["runs_on"] != str(self.strategy):
            where += (
                f"; saved by {state['runs_on']}, resumes as {self.strategy}. Weights, optimizer, "
                "learning rate, epoch and step are restored. Not exact: dropout draws different "
                "numbers; sums are rounded in another order"
            )
            if state["step_in_epoch"] > 0 and not isinstance(self.train_feed, DataSetFeed):
                where += "; the ranks split this epoch's rows differently, so some repeat and some "
                where += "are skipped"
        return f"{where}."


def refuse_wrapped(model: nn.Module) -> None:
    """Raise ValueError if a model, or a part of it, is already wrapped for several GPUs."""
    wrappers: tuple[type, ...] = (nn.DataParallel, DistributedDataParallel)
    # Importing FSDP takes seconds; where it is not imported, no model is wrapped in it.
    if fsdp := sys.modules.get("torch.distributed.fsdp"):
        wrappers += (fsdp.FSDPModule, fsdp.FullyShardedDataParallel)
    for name, module in model.named_modules():
        if isinstance(module, wrappers):
            what = "the model" if not name else f"the model's part {name!r}"
            raise ValueError(
                f"{what} is already wrapped in {type(module).__name__}. The Trainer wraps the "
                "model itself, according to mode: pass the inner model (its .module)."
            )
