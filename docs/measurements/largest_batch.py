"""Record what the sharding lesson shows of freed memory: the largest batch of ddp, zero2, zero3.

    python docs/measurements/largest_batch.py     writes docs/reference/largest_batch/text.csv

A GPT of 4.8 million parameters learns from the texts of the task `text`, on 4 ranks of which each
has 96 MiB. The largest batch of each mode is found by trying: the ranks really train, so what fits
was tried, and so was one row more. Then the modes are timed in turn. About three minutes of two
free cores. The page shows what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import cast

import torch
from torch import nn
from writer import write

from multigpu.devices.meters import parse_bytes
from multigpu.ranks import RankError, Results, run_ranks
from multigpu.scaling import workload_of
from multigpu.scaling.formulas import memory_per_gpu
from multigpu.scaling.measuring import NO_LIMIT, Stopwatch, Workload, first_rows, short_run
from multigpu.training.models import SmallGPT
from multigpu.training.trainer import Trainer

RANKS, MEMORY, ROUNDS = 4, "96 MiB", 5
STAGES = {"ddp": 0, "zero2": 2, "zero3": 3}
MODEL = partial(SmallGPT, width=256, depth=6)
STEPS = 2  # the optimizer's state is there after the first; the second is as any other
TIMED_STEPS = 4
NEARLY = 0.05  # of the limit: a guess leaves it free


@dataclass(frozen=True)
class Largest:
    """The largest batch of one mode, and what it costs."""

    mode: str
    ranks: int
    memory: int  # bytes: the limit of each rank
    rows: int  # of each rank; 0 if not even one fits
    peak: int  # bytes: the most that a rank held with them
    common_peak: int  # bytes: the same with as many rows as fit in every mode
    rounds: tuple[float, ...] = ()  # seconds of a step, one for each run
    epoch_rows: int = 0

    @property
    def step_seconds(self) -> float:
        """The median of the runs."""
        return median(self.rounds)

    @property
    def batch_size(self) -> int:
        """The global batch."""
        return self.rows * self.ranks

    @property
    def epoch_seconds(self) -> float:
        """All rows once, at the pace of a step."""
        return self.step_seconds * self.epoch_rows / self.batch_size


def largest_batches(
    workload: Workload, modes: Sequence[str], *, ranks: int, memory: int | str, repeats: int
) -> list[Largest]:
    """Find the most rows per rank that each mode trains in `memory`, and time some steps of it.

    The workload's model is a function that makes it: each rank makes its own, so that nothing is
    there twice. Two small batches are metered first; a straight line through their peaks gives the
    guess, and trying goes on from there. The modes are timed in turn, `repeats` times, without
    meter or limit.
    """
    limit = parse_bytes(memory)
    trials = {mode: Trials(workload, mode, ranks) for mode in modes}
    rows = {
        mode: largest(partial(trial.fits, limit=limit), guess=trial.guess(limit))
        for mode, trial in trials.items()
    }
    runs = [
        {mode: trial.seconds(rows[mode]) for mode, trial in trials.items()} for _ in range(repeats)
    ]
    return [
        Largest(
            mode,
            ranks,
            limit,
            rows[mode],
            peak=trial.peak(rows[mode]),
            common_peak=trial.peak(min(rows.values())),
            rounds=tuple(run[mode] for run in runs),
            epoch_rows=len(workload.train),
        )
        for mode, trial in trials.items()
    ]


def largest(fits: Callable[[int], bool], *, guess: int) -> int:
    """The largest number that fits, 0 if none does: what fits is tried, and so is one more."""
    rows = max(guess, 1)
    if fits(rows):
        while fits(rows + 1):
            rows += 1
        return rows
    while rows > 1:
        rows -= 1
        if fits(rows):
            return rows
    return 0


@dataclass(frozen=True)
class Trials:
    """Short trainings of one mode, that differ in their batch."""

    workload: Workload
    mode: str
    ranks: int

    def run(
        self, rows: int, *, steps: int = STEPS, warmup: int = 0, memory: int | None = None
    ) -> Results:
        """Train with `rows` rows on each rank: the seconds of a step, and the ranks' peaks."""
        batch_size = rows * self.ranks
        # The ranks get no more rows than they need: on the CPU these count as the GPU's memory.
        few = first_rows(self.workload.train, batch_size * (steps + warmup))
        workload = replace(self.workload, train=few, test=None)
        config = short_run(
            workload.config, mode=self.mode, gpus=None, batch_size=batch_size, lr_scaling="none"
        )

        def train() -> float:
            torch.manual_seed(config.seed)
            watch = Stopwatch(workload.train, steps=steps, warmup=warmup)
            model = cast("Callable[[], nn.Module]", workload.model)()
            Trainer(model, config, watch, loss_fn=workload.loss_fn).fit()
            return watch.seconds

        return run_ranks(train, self.ranks, memory=memory, timeout=None, trace=False, show=False)

    def seconds(self, rows: int) -> float:
        """Seconds of a step, the mean of some after the first one."""
        return float(self.run(rows, steps=TIMED_STEPS, warmup=1)[0])

    def peak(self, rows: int) -> int:
        """Bytes: the most that a rank holds."""
        return max(self.run(rows, memory=NO_LIMIT).memory or ())

    def guess(self, limit: int) -> int:
        """How many rows may fit, from the peaks with one row and with three."""
        one, three = self.peak(1), self.peak(3)
        each = max((three - one) / 2, 1.0)
        return int(1 + max(limit * (1 - NEARLY) - one, 0) // each)

    def fits(self, rows: int, limit: int) -> bool:
        """Whether `rows` rows on each rank can be trained in `limit` bytes."""
        try:
            self.run(rows, memory=limit)
        except RankError as error:
            if "OutOfMemoryError" not in str(error):
                raise
            return False
        return True


def line_of(found: Largest, baseline: Largest, parameters: int) -> dict[str, object]:
    """One row of the record."""
    freed = baseline.common_peak - found.common_peak
    stages = (0, STAGES[found.mode])
    first, last = (
        memory_per_gpu(parameters, stage=stage, gpus=RANKS, precision="float32").total
        for stage in stages
    )
    return {
        "mode": found.mode,
        "rows per rank": found.rows,
        "batch size": found.batch_size,
        "peak bytes": found.peak,
        "peak bytes with ddp's rows": found.common_peak,
        "freed": freed,
        "freed by formula": first - last,
        "steps per epoch": -(-found.epoch_rows // found.batch_size),
        "seconds per step": f"{found.step_seconds:.3f}",
        "seconds per epoch": f"{found.epoch_seconds:.1f}",
        "seconds of each round": " ".join(f"{seconds:.3f}" for seconds in found.rounds),
        "ddp's epoch by this one": f"{ratio(found, baseline):.3f}",
    }


def ratio(found: Largest, baseline: Largest) -> float:
    """How many times as long ddp's epoch takes: the median of the rounds' ratios."""
    pace = found.batch_size / baseline.batch_size
    pairs = zip(baseline.rounds, found.rounds, strict=True)
    return median(pace * ddp / own for ddp, own in pairs)


def main() -> None:
    """Find, time and write."""
    parameters = sum(parameter.numel() for parameter in MODEL().parameters())

    def rows() -> Iterator[dict[str, object]]:
        workload = replace(workload_of("text"), model=MODEL)
        found = largest_batches(workload, list(STAGES), ranks=RANKS, memory=MEMORY, repeats=ROUNDS)
        yield from (line_of(each, found[0], parameters) for each in found)

    about = (
        f"{RANKS} gloo ranks on the CPU, {MEMORY} each, {parameters:,} parameters, float32, AdamW"
    )
    write("largest_batch/text.csv", about, rows())


if __name__ == "__main__":
    main()
