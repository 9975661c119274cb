"""What ``multigpu train`` prints, on rank 0 alone: what runs, each epoch, what came of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from multigpu.training.history import History

if TYPE_CHECKING:
    from multigpu.training import Trainer
    from multigpu.training.tasks import Task

WORDS = 58  # columns for what a rule does


class Report:
    """The words around one training run."""

    def __init__(self, data: str, task: Task, trainer: Trainer) -> None:
        self.data, self.task, self.trainer = data, task, trainer
        self.began = time.perf_counter()

    def begin(self) -> None:
        """Say what runs; from now on each epoch is said when it is over."""
        details = self.trainer.strategy.details()
        self._say(
            f"{self.data}: {self.task.title}",
            self.trainer.describe(),
            *([details] if details else []),
        )
        if self.trainer.launch.is_main:
            self.trainer.history = Spoken(self.trainer.total_steps)

    def end(self) -> None:
        """Say what came of it, beside what simple rules reach, and where it is kept."""
        seconds = time.perf_counter() - self.began
        step = self.trainer.position.step
        self._say(f"done: {step:,} steps, {seconds:.1f} s with the evaluations")
        if self.trainer.launch.is_main:
            self._say(*compared(self.trainer.history.last, self.task.metrics), *self._kept())

    def stopped(self) -> None:
        """One line after Ctrl-C."""
        step = self.trainer.position.step
        checkpoints = self.trainer.checkpoints
        if checkpoints is None:
            kept = "nothing is kept without --folder"
        elif checkpoints.path().exists():
            kept = f"{checkpoints.path()} is whole, the same command goes on from there"
        else:
            kept = f"no checkpoint in {checkpoints.folder} yet (--save-every N writes more)"
        self._say(f"\nstopped after step {step:,}; {kept}")

    def _kept(self) -> Iterator[str]:
        """Where the files are."""
        if self.trainer.checkpoints is None:
            yield "nothing was kept: --folder runs/NAME keeps checkpoints and the history"
            return
        checkpoints = self.trainer.checkpoints
        yield f"history      {checkpoints.folder / 'history.csv'}"
        yield f"checkpoints  {checkpoints.path('latest')}, {checkpoints.path('best')}"

    def _say(self, *lines: str) -> None:
        if self.trainer.launch.is_main:
            print(*lines, sep="\n", flush=True)


class Spoken(History):
    """A history that prints each epoch as it comes: the log of a batch job shows how it goes."""

    def __init__(self, total_steps: int) -> None:
        super().__init__()
        self.total_steps = total_steps

    def add(self, row: Mapping[str, Any]) -> None:
        super().add(row)
        from tqdm import tqdm  # writes above a bar, if there is one

        tqdm.write(line_of(row, self.total_steps))


def line_of(row: Mapping[str, Any], total_steps: int) -> str:
    """``epoch 2  step 1,072 of 1,608  loss 1.234  recall@10 0.871  12.3 s  5,400 rows/s``."""
    evaluated = [
        f"{name.removeprefix('eval_') if name != 'eval_loss' else 'test loss'} {value:.4f}"
        for name, value in row.items()
        if name.startswith("eval_")
    ]
    return "  ".join(
        [
            f"epoch {row['epoch']}",
            f"step {row['step']:,} of {total_steps:,}",
            f"loss {row['loss']:.4f}",
            *evaluated,
            f"{row['seconds']:.1f} s",
            f"{row['rows_per_second']:,.0f} rows/s",
        ]
    )


def compared(last: Mapping[str, Any], metrics: tuple[str, ...]) -> Iterator[str]:
    """The last figures beside those of the rules that the flights are known by."""
    names = [name for name in metrics if f"eval_{name}" in last]
    if "recall@10" not in names:
        return
    from multigpu.data.flight_rows import RULES, flight_baselines

    yield f"{'':{WORDS}}" + "".join(f"{name:>11}" for name in names)
    rules = {RULES[rule]: figures for rule, figures in flight_baselines().items()}
    model = {name: float(last[f"eval_{name}"]) for name in names}
    for rule, figures in {"this model": model, **rules}.items():
        shown = "".join(f"{figures[name]:11.4f}" for name in names if name in figures)
        yield f"{rule:{WORDS}}{shown}"
