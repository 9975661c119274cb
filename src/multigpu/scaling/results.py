"""What came out of a comparison: plain records, and the statistics that are drawn from them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from multigpu.pictures import Picture, Table
from multigpu.scaling.machine import Machine
from multigpu.scaling.plan import Candidate, LeftOut
from multigpu.scaling.speed_up import efficiency

SAME = 1e-3  # relative difference of losses below which runs count as the same training


@dataclass(frozen=True)
class Row:
    """One candidate after all rounds."""

    candidate: Candidate
    where: str  # on what it ran, for people
    rounds: tuple[float, ...]  # seconds of a step, the mean of each round's measured steps
    figures: Mapping[str, float]  # the evaluation after the last step: {"loss": ..., ...}
    first: float | None = None  # seconds of the very first step, the median over the rounds
    peak_bytes: tuple[int, ...] = ()  # the most that each GPU or rank held; empty: not known
    communication: float | None = None  # share of a step in which an all-reduce is under way
    traffic: int | None = None  # bytes between GPUs in one step, in all

    @property
    def step_seconds(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.rounds)

    @property
    def fastest(self) -> float:
        """Seconds of a step in the fastest round."""
        return min(self.rounds)

    @property
    def slowest(self) -> float:
        """Seconds of a step in the slowest round."""
        return max(self.rounds)


@dataclass(frozen=True)
class Settings:
    """What all candidates had in common."""

    work: str  # what was trained: "flights"
    date: str  # 2026-11-21
    batch_size: int  # rows of all GPUs together in one step
    steps: int  # measured in each round
    warmup: int  # steps before them
    seed: int
    threads: int  # of each GPU that the CPU plays, and of each process on real ones
    load: float | None = None  # cores at work on something else just before it began


@dataclass(frozen=True)
class Comparison:
    """Several ways to train the same, measured in one run."""

    settings: Settings
    machine: Machine
    rows: tuple[Row, ...]
    left_out: tuple[LeftOut, ...] = field(default=())

    def table(self, *, full: bool = False) -> Table:
        """All rows as a table: a notebook shows it, and `print` writes it in letters.

        `full`: with all columns, for which a terminal of 80 characters has no room.
        """
        from multigpu.scaling.showing import narrow, table_of

        return table_of(self) if full else narrow(table_of(self))

    def picture(self, *, published: bool = True) -> Picture:
        """All rows as bars of time, with what others have published below."""
        from multigpu.scaling.showing import picture_of

        return picture_of(self, published=published)

    def row(self, mode: str, gpus: int = 1) -> Row:
        """One of the rows.  Raises KeyError if it is not there, and names those that are."""
        for row in self.rows:
            if row.candidate == Candidate(mode, gpus):
                return row
        there = ", ".join(str(row.candidate) for row in self.rows)
        raise KeyError(f"{Candidate(mode, gpus)} was not measured; there are: {there}")

    @property
    def single(self) -> Row | None:
        """The row that the others are compared with, if it was measured."""
        return next((row for row in self.rows if row.candidate.mode == "single"), None)

    def speed_up(self, row: Row) -> float | None:
        """How many times as fast as single: the median of the rounds' ratios.

        What disturbs a round disturbs both numbers of its ratio, so this is steadier than the ratio
        of the medians.
        """
        if self.single is None:
            return None
        pairs = zip(self.single.rounds, row.rounds, strict=True)
        return statistics.median(one / many for one, many in pairs)

    def efficiency(self, row: Row) -> float | None:
        """The speed-up by the number of GPUs; None where there is no speed-up."""
        found = self.speed_up(row)
        return None if found is None else efficiency(found, row.candidate.gpus)

    def rows_per_second(self, row: Row) -> float:
        """Rows of the data that are trained on in a second."""
        return self.settings.batch_size / row.step_seconds

    def rows_per_gpu(self, row: Row) -> int:
        """The local batch; in a pipeline every GPU sees all rows, a micro-batch at a time."""
        whole = row.candidate.mode == "pipeline"
        return self.settings.batch_size // (1 if whole else row.candidate.gpus)

    @property
    def busy(self) -> bool:
        """Whether other programs had more than half of the cores when the measuring began."""
        return (self.settings.load or 0.0) > self.machine.cores / 2

    @property
    def metric(self) -> str:
        """The figure that is shown beside the time, a metric where there is one, else the loss."""
        names = [name for row in self.rows for name in row.figures if name != "loss"]
        return next(iter(names), "loss")

    @property
    def largest_difference(self) -> float:
        """Between the final losses of any two rows, relative to the smallest."""
        losses = [row.figures["loss"] for row in self.rows if "loss" in row.figures]
        if len(losses) < 2:
            return 0.0
        return (max(losses) - min(losses)) / max(abs(min(losses)), 1e-12)

    @property
    def trained_alike(self) -> bool:
        """Whether all rows ended with the same loss, but for rounding. Only then compare times."""
        return self.largest_difference < SAME
