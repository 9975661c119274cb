"""A comparison as a CSV file, and back: one line per candidate, each complete in itself.

Every line carries the date, the machine and the versions, so that files can be put together, and
the seconds of every round, so that nobody has to believe a median.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from multigpu.scaling.machine import Machine
from multigpu.scaling.plan import Candidate
from multigpu.scaling.results import Comparison, Row, Settings

FIGURE = "final "  # before the name of an evaluation's figure


def write_csv(comparison: Comparison, path: str | Path) -> None:
    """Write one line per row of the comparison. An existing file is replaced."""
    lines = [line_of(comparison, row) for row in comparison.rows]
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]))
        writer.writeheader()
        writer.writerows({name: cell(value) for name, value in line.items()} for line in lines)


def cell(value: Any) -> Any:
    """A value as CSV has it: numbers of a list with blanks between them, nothing for None."""
    return " ".join(map(str, value)) if isinstance(value, list) else value


def line_of(comparison: Comparison, row: Row) -> dict[str, Any]:
    """One row with everything that is needed to understand it; None for what it does not have."""
    settings, machine = comparison.settings, comparison.machine
    figures = {f"{FIGURE}{name}": round(value, 6) for name, value in row.figures.items()}
    return {
        "date": settings.date,
        "work": settings.work,
        "mode": row.candidate.mode,
        "gpus": row.candidate.gpus,
        "ran on": row.where,
        "batch size": settings.batch_size,
        "rows per GPU": comparison.rows_per_gpu(row),
        "median ms per step": milliseconds(row.step_seconds),
        "rows per second": round(comparison.rows_per_second(row)),
        "speed-up": rounded(comparison.speed_up(row), 3),
        "efficiency": rounded(comparison.efficiency(row), 3),
        "ms of the first step": None if row.first is None else milliseconds(row.first),
        "ms of each round": [milliseconds(seconds) for seconds in row.rounds],
        **figures,
        "peak bytes": list(row.peak_bytes),
        "all-reduce share": rounded(row.communication, 3),
        "bytes between GPUs per step": row.traffic,
        "steps": settings.steps,
        "warm-up steps": settings.warmup,
        "seed": settings.seed,
        "threads": settings.threads,
        "load before": rounded(settings.load, 1),
        "processor": machine.processor,
        "cores": machine.cores,
        "real GPUs": "; ".join(machine.gpus),
        "system": machine.system,
        "Python": machine.python,
        "torch": machine.torch,
    }


def milliseconds(seconds: float) -> float:
    """Seconds as milliseconds with five digits."""
    return float(f"{1e3 * seconds:.5g}")


def rounded(number: float | None, digits: int) -> float | None:
    """The number with so many decimals, None as it is."""
    return None if number is None else round(number, digits)


def read_csv(path: str | Path) -> Comparison:
    """The comparison of a file that `write_csv` wrote (without what was left out).

    Raises ValueError for a file with no rows, or with other columns.
    """
    with Path(path).open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    if not lines:
        raise ValueError(f"{path}: no measurements in this file")
    try:
        return Comparison(
            settings_of(lines[0]), machine_of(lines[0]), tuple(row_of(line) for line in lines)
        )
    except KeyError as missing:
        raise ValueError(
            f"{path}: no column {missing}. Give a file that `multigpu compare --output` wrote."
        ) from None


def row_of(line: dict[str, str]) -> Row:
    """A row from its line."""
    figures = {
        name.removeprefix(FIGURE): float(value)
        for name, value in line.items()
        if name.startswith(FIGURE) and value
    }
    share, traffic = line["all-reduce share"], line["bytes between GPUs per step"]
    first = line["ms of the first step"]
    return Row(
        Candidate(line["mode"], int(line["gpus"])),
        where=line["ran on"],
        rounds=tuple(float(ms) / 1e3 for ms in line["ms of each round"].split()),
        figures=figures,
        first=float(first) / 1e3 if first else None,
        peak_bytes=tuple(map(int, line["peak bytes"].split())),
        communication=float(share) if share else None,
        traffic=int(traffic) if traffic else None,
    )


def settings_of(line: dict[str, str]) -> Settings:
    """What all lines have in common, from one of them."""
    return Settings(
        work=line["work"],
        date=line["date"],
        batch_size=int(line["batch size"]),
        steps=int(line["steps"]),
        warmup=int(line["warm-up steps"]),
        seed=int(line["seed"]),
        threads=int(line["threads"]),
        load=float(line["load before"]) if line["load before"] else None,
    )


def machine_of(line: dict[str, str]) -> Machine:
    """The machine, from one line."""
    return Machine(
        processor=line["processor"],
        cores=int(line["cores"]),
        gpus=tuple(filter(None, line["real GPUs"].split("; "))),
        system=line["system"],
        python=line["Python"],
        torch=line["torch"],
    )
