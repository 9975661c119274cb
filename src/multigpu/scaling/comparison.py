"""The result of a comparison: records, their statistics, table, picture and CSV.

`Comparison` is one run of `compare` (measuring.py): its `Settings`, the `Machine`, and a `Row` for
each `Candidate`. Below the picture are published times (published.py).
"""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from multigpu.pictures import Picture, Table, human_bytes
from multigpu.pictures.bars import BarGroup, Duration, durations
from multigpu.pictures.units import human_seconds
from multigpu.ranks.errors import counted
from multigpu.scaling.published import (
    COMPARED_WITH,
    published_groups,
    published_picture,  # noqa: F401  # a notebook imports it from here
)

ONE_PROCESS = ("single", "dp")  # every other mode has a rank for each GPU
SAME = 1e-3  # relative difference of losses below which runs count as the same training
WIDE = ("ran on", "rows per GPU", "efficiency")  # columns for which a terminal has no room
FIGURE = "final "  # in the CSV before the name of an evaluation's figure


@dataclass(frozen=True)
class Candidate:
    """One way to train that is compared: a mode on a number of GPUs."""

    mode: str
    gpus: int

    def __str__(self) -> str:
        return self.mode if self.mode == "single" else f"{self.mode} on {self.gpus}"

    @property
    def ranks(self) -> int:
        return 1 if self.mode in ONE_PROCESS else self.gpus


@dataclass(frozen=True)
class Machine:
    """The machine and the versions that matter for a time."""

    processor: str
    cores: int  # that this process may use
    gpus: tuple[str, ...]  # the names of the real ones
    system: str
    python: str
    torch: str

    @classmethod
    def here(cls) -> Machine:
        import torch  # late: reading a CSV needs none

        cpuinfo = Path("/proc/cpuinfo")
        text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
        name = re.search(r"^model name\s*:[ \t]*(.+)", text, re.MULTILINE)
        if hasattr(os, "sched_getaffinity"):  # which may be fewer than the machine has
            cores = len(os.sched_getaffinity(0))
        else:
            cores = os.cpu_count() or 1
        return cls(
            processor=name[1].strip() if name else platform.processor() or platform.machine(),
            cores=cores,
            gpus=tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())),
            system=f"{platform.system()} {platform.machine()}",
            python=platform.python_version(),
            torch=torch.__version__,
        )

    def where(self, candidate: Candidate) -> str:
        """What a candidate runs on with this machine, as the figure says it."""
        gpus, cores = candidate.gpus, counted(self.cores, "core")
        if candidate.mode == "single":
            return self.named(1) if self.gpus else f"one process on the CPU ({cores})"
        if len(self.gpus) >= gpus:
            return self.named(gpus) + (" (nccl)" if candidate.mode != "dp" else "")
        if candidate.mode == "dp":
            backing = self.named(1) if self.gpus else f"one CPU, {cores}"
            return f"{counted(gpus, 'virtual GPU')} ({backing})"
        if self.gpus:
            return f"{gpus} gloo processes share {self.named(len(self.gpus))}"
        return f"{counted(gpus, 'gloo process')} on the CPU ({cores})"

    def named(self, gpus: int) -> str:
        """The first `gpus` GPUs by name: `2 × NVIDIA A100`."""
        names = Counter(self.gpus[:gpus])
        return ", ".join(f"{count} × {name}" for name, count in names.items())

    def __str__(self) -> str:
        gpus = self.named(len(self.gpus)) if self.gpus else "no GPU"
        return (
            f"{self.processor}, {counted(self.cores, 'core')}, {gpus}; "
            f"{self.system}, Python {self.python}, torch {self.torch}"
        )


def load_here(seconds: float = 0.5) -> float:
    """How many cores are busy, measured over the next `seconds`.

    The system's own load average would still count what this process itself did a minute ago.
    """
    share = float(psutil.cpu_percent(interval=seconds)) / 100
    return round(share * (psutil.cpu_count() or 1), 2)


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
    traffic: int | None = None  # bytes between GPUs in one step, in total

    @property
    def step_seconds(self) -> float:
        return statistics.median(self.rounds)


@dataclass(frozen=True)
class Settings:
    """The settings that all candidates had in common."""

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
    left_out: Mapping[Candidate, str] = field(default_factory=dict)  # and the reason

    def row(self, mode: str, gpus: int = 1) -> Row:
        """One of the rows.  Raises KeyError if it is not there, and names those that are."""
        rows = {row.candidate: row for row in self.rows}
        if (wanted := Candidate(mode, gpus)) not in rows:
            there = ", ".join(map(str, rows))
            raise KeyError(f"{wanted} was not measured; measured were: {there}")
        return rows[wanted]

    @property
    def single(self) -> Row | None:
        """The row that the others are compared with, if it was measured."""
        return next((row for row in self.rows if row.candidate.mode == "single"), None)

    def speed_up(self, row: Row) -> float | None:
        """How many times as fast as single: the median of the rounds' ratios.

        A disturbance affects both times of a round's ratio, so this varies less than the ratio of
        the medians.
        """
        if self.single is None:
            return None
        pairs = zip(self.single.rounds, row.rounds, strict=True)
        return statistics.median(one / many for one, many in pairs)

    def efficiency(self, row: Row) -> float | None:
        """The speed-up divided by the number of GPUs; None where there is no speed-up."""
        found = self.speed_up(row)
        return None if found is None else found / row.candidate.gpus

    def rows_per_second(self, row: Row) -> float:
        """Rows of the data that are trained on in a second."""
        return self.settings.batch_size / row.step_seconds

    def rows_per_gpu(self, row: Row) -> int:
        """The local batch; in a pipeline every GPU computes all rows, one micro-batch at a time."""
        whole = row.candidate.mode == "pipeline"
        return self.settings.batch_size // (1 if whole else row.candidate.gpus)

    @property
    def busy(self) -> bool:
        """Whether other programs had more than half of the cores when the measuring began."""
        return (self.settings.load or 0.0) > self.machine.cores / 2

    @property
    def metric(self) -> str:
        """The figure that is shown beside the time: a metric if there is one, else the loss."""
        names = (name for row in self.rows for name in row.figures if name != "loss")
        return next(names, "loss")

    @property
    def largest_difference(self) -> float:
        """Between the final losses of any two rows, relative to the smallest."""
        losses = [row.figures["loss"] for row in self.rows if "loss" in row.figures]
        if len(losses) < 2:
            return 0.0
        return (max(losses) - min(losses)) / max(abs(min(losses)), 1e-12)

    @property
    def trained_alike(self) -> bool:
        """Whether all rows ended with the same loss, up to rounding. Only then compare times."""
        return self.largest_difference < SAME

    @property
    def agreement(self) -> str:
        """A sentence that says whether all rows have trained the same thing."""
        if len(self.rows) == 1:
            return "There is only one row, so there is nothing to compare."
        largest = self.largest_difference
        if self.trained_alike:
            return f"All rows end with the same loss (relative difference at most {largest:.0e})."
        return (
            f"The final losses differ by up to {largest:.1%}: these rows did not train exactly the "
            "same. Dropout and BatchNorm cause that, because each rank draws its own masks and "
            "averages over its own rows. Without them something is wrong: do not compare the times."
        )

    @property
    def conditions(self) -> str:
        """The number of rounds, what a speed-up is, the threads, and whether it was busy."""
        said = f"median of {counted(len(self.rows[0].rounds), 'round')} in turn"
        if self.single is not None:
            said += " (×: median of the rounds' ratios)"
        said += f", {counted(self.settings.threads, 'thread')} per GPU"
        if self.busy:
            said += f"; busy with other work (load {self.settings.load:.1f} before it began)"
        return said

    def table(self, *, full: bool = False) -> Table:
        """All rows as a table: a notebook shows it, and `print` writes it as text.

        `full`: with all columns, which do not fit into a terminal of 80 characters.
        """
        settings, rows = self.settings, []
        for row in self.rows:
            up, part, final = self.speed_up(row), self.efficiency(row), row.figures.get(self.metric)
            low, unit = human_seconds(min(row.rounds)).split()
            high = human_seconds(max(row.rounds))
            cells = {
                "mode": str(row.candidate),
                "ran on": row.where,
                "rows per GPU": str(self.rows_per_gpu(row)),
                "step": human_seconds(row.step_seconds),
                "spread": f"{low}–{high}" if high.endswith(f" {unit}") else f"{low} {unit}–{high}",
                "rows/s": f"{self.rows_per_second(row):,.0f}",
                "speed-up": "–" if up is None else _ratio(up),
                "efficiency": "–" if part is None else f"{part:.0%}",
                self.metric: "–" if final is None else f"{final:.4f}",
                "memory": human_bytes(max(row.peak_bytes)) if row.peak_bytes else "–",
                "all-reduce": "–" if row.communication is None else f"{row.communication:.0%}",
            }
            rows.append({name: cell for name, cell in cells.items() if full or name not in WIDE})
        title = (
            f"{settings.work}: {counted(settings.batch_size, 'row')} a step in every mode; "
            f"{counted(settings.steps, 'step')} after {settings.warmup} of warm-up;\n"
            "speed-up: median of the rounds' ratios"
        )
        numbers = frozenset(rows[0]) - {"mode", "ran on"}
        return Table(title, tuple(rows[0]), tuple(tuple(row.values()) for row in rows), numbers)

    def picture(self, *, published: bool = True) -> Picture:
        """Bars of the time of a step, each with its devices; published times are below."""
        bars = []
        for row in self.rows:
            up = self.speed_up(row)
            faster = "" if up is None or row is self.single else f" · {_ratio(up)} ×"
            bars.append(
                Duration(
                    label=str(row.candidate),
                    seconds=row.step_seconds,
                    value=f"{human_seconds(row.step_seconds)}{faster}",
                    note=row.where,
                    spread=(min(row.rounds), max(row.rounds)),
                    communication=row.communication or 0.0,
                    devices=row.candidate.gpus,
                )
            )
        measured = BarGroup(
            f"{self.settings.work}, measured {self.settings.date}",
            bars,
            note=f"{self.machine}; {self.settings.batch_size} rows a step, {self.conditions}",
            against=None if self.single is None else self.single.step_seconds,
        )
        groups = [measured, *(published_groups() if published else [])]
        return durations(groups, title="Time of one step by mode", line_at=COMPARED_WITH)

    def lines(self) -> list[dict[str, Any]]:
        """A line for each row, with all that is needed to understand it; None where unknown."""
        lines = []
        for row in self.rows:
            records = {**vars(self), "comparison": self, "row": row, "candidate": row.candidate}
            line: dict[str, Any] = {}
            for name, record, attribute, write, _ in COLUMNS:
                value = getattr(records[record], attribute)
                value = value(row) if record == "comparison" else value
                if name == FIGURE:
                    line |= {f"{FIGURE}{figure}": write(one) for figure, one in value.items()}
                else:
                    line[name] = None if value is None else write(value)
            lines.append(line)
        return lines

    def json(self) -> str:
        """The lines as JSON, which has no NaN: such a loss is null."""

        lines = self.lines()
        for line in lines:
            line |= {k: None for k, v in line.items() if isinstance(v, float) and not isfinite(v)}
        return json.dumps(lines, indent=2, ensure_ascii=False, allow_nan=False)


def _ratio(speed_up: float) -> str:
    """A speed-up with two digits at least: 1.69, 0.048."""
    return f"{speed_up:.2f}" if speed_up >= 0.1 else f"{speed_up:.2g}"


class Column(NamedTuple):
    """A column of the file, and the field of a record that it holds."""

    name: str
    record: str  # settings, machine, candidate, row; comparison has methods that take the row
    attribute: str
    write: Callable[[Any], Any] = lambda value: value
    read: Callable[[str], Any] | None = str  # None: it is computed again


def ms(seconds: float) -> float:
    """Milliseconds with five digits."""
    return float(f"{1e3 * seconds:.5g}")


def seconds(text: str) -> float:
    """What `ms` returned, as it is in the file."""
    return float(text) / 1e3


NUMBERS = (int, float, seconds)  # of which an unknown one is left empty
COLUMNS = (
    Column("date", "settings", "date"),
    Column("work", "settings", "work"),
    Column("mode", "candidate", "mode"),
    Column("gpus", "candidate", "gpus", read=int),
    Column("ran on", "row", "where"),
    Column("batch size", "settings", "batch_size", read=int),
    Column("rows per GPU", "comparison", "rows_per_gpu", read=None),
    Column("median ms per step", "row", "step_seconds", ms, None),
    Column("rows per second", "comparison", "rows_per_second", round, None),
    Column("speed-up", "comparison", "speed_up", partial(round, ndigits=3), None),
    Column("efficiency", "comparison", "efficiency", partial(round, ndigits=3), None),
    Column("ms of the first step", "row", "first", ms, seconds),
    Column("ms of each round", "row", "rounds", lambda rounds: [*map(ms, rounds)],
           lambda text: tuple(map(seconds, text.split()))),
    Column(FIGURE, "row", "figures", partial(round, ndigits=6), float),  # "final loss", ...
    Column("peak bytes", "row", "peak_bytes", list, lambda text: tuple(map(int, text.split()))),
    Column("all-reduce share", "row", "communication", partial(round, ndigits=3), float),
    Column("bytes between GPUs per step", "row", "traffic", read=int),
    Column("steps", "settings", "steps", read=int),
    Column("warm-up steps", "settings", "warmup", read=int),
    Column("seed", "settings", "seed", read=int),
    Column("threads", "settings", "threads", read=int),
    Column("load before", "settings", "load", partial(round, ndigits=1), float),
    Column("processor", "machine", "processor"),
    Column("cores", "machine", "cores", read=int),
    Column("real GPUs", "machine", "gpus", "; ".join,
           lambda text: tuple(filter(None, text.split("; ")))),
    Column("system", "machine", "system"),
    Column("Python", "machine", "python"),
    Column("torch", "machine", "torch"),
)  # fmt: skip


def write_csv(comparison: Comparison, path: str | Path) -> None:
    """Write one line per row of the comparison, each complete in itself. A file is replaced.

    Every line carries the date, the machine and the versions, so that files can be put together,
    and the seconds of every round, so that the median can be checked.
    """
    lines = comparison.lines()
    for line in lines:  # a list of numbers has blanks between them; None is left empty
        line |= {k: " ".join(map(str, v)) for k, v in line.items() if isinstance(v, list)}
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


def read_csv(path: str | Path) -> Comparison:
    """The comparison of a file that `write_csv` wrote (without the candidates that were left out).

    Raises ValueError for a file with no rows, or with other columns.
    """
    with Path(path).open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    if not lines:
        raise ValueError(f"{path}: no measurements in this file")
    try:
        settings, machine, rows = zip(*map(_read, lines), strict=True)
    except KeyError as missing:
        raise ValueError(
            f"{path}: no column {missing}. Give a file that `multigpu compare --output` wrote."
        ) from None
    return Comparison(settings[0], machine[0], rows)


def _read(line: dict[str, str]) -> tuple[Settings, Machine, Row]:
    """One line as records; settings and machine are the same on all lines."""
    records: dict[str, dict[str, Any]] = {name: {} for _, name, *_ in COLUMNS}
    for name, record, attribute, _, read in COLUMNS:
        if name == FIGURE:
            figures = {key: text for key, text in line.items() if key.startswith(FIGURE) and text}
            value = {key.removeprefix(FIGURE): float(text) for key, text in figures.items()}
            records[record][attribute] = value
        elif read is not None:
            empty = read in NUMBERS and not line[name]
            records[record][attribute] = None if empty else read(line[name])
    row = Row(Candidate(**records["candidate"]), **records["row"])
    return Settings(**records["settings"]), Machine(**records["machine"]), row
