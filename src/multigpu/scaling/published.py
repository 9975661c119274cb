"""Published times and speeds, each with its source: the records of published.toml.

for row in published_times():
    print(row.suite, row.work, row.speed_up("ddp"))
"""

from __future__ import annotations

import tomllib
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from multigpu.pictures import Picture
from multigpu.pictures.bars import BarGroup, Duration, durations
from multigpu.scaling.pipeline_times import bubble

COMPARED_WITH = "what is compared with"  # the dashed line


class PublishedTimes(SimpleNamespace):
    """Seconds of one piece of work by mode, as published; fields as in published.toml."""

    @property
    def against(self) -> str:
        """The mode the others are compared with: single where it was measured, else dp."""
        return "single" if "single" in self.seconds else "dp"

    def speed_up(self, mode: str) -> float:
        """How many times as fast as `against`."""
        return float(self.seconds[self.against] / self.seconds[mode])


class PublishedPipeline(SimpleNamespace):
    """How fast a pipeline was on several numbers of GPUs; fields as in published.toml."""

    @property
    def gains(self) -> list[float]:
        """How many times as fast as with the fewest GPUs."""
        speeds = self.speeds if hasattr(self, "speeds") else [1 / each for each in self.seconds]
        return [each / speeds[0] for each in speeds]

    @property
    def predicted_gains(self) -> list[float]:
        """The speed-up if only the bubble counts: p GPUs do the work of p · (1 - bubble)."""
        useful = [p * (1 - bubble(p, self.micro_batches)) for p in self.gpus]
        return [each / useful[0] for each in useful]


def _published(kind: str, record: Any = SimpleNamespace) -> tuple[Any, ...]:
    text = Path(__file__).with_name("published.toml").read_text(encoding="utf-8")
    return tuple(record(**row) for row in tomllib.loads(text)[kind])


def published_times() -> tuple[PublishedTimes, ...]:
    """Published times of single, DP and DDP."""
    return _published("times", PublishedTimes)


def published_efficiencies() -> tuple[SimpleNamespace, ...]:
    """The share of the ideal speed-up: work, gpus, hardware, efficiency, source, url."""
    return _published("efficiencies")


def published_overlaps() -> tuple[SimpleNamespace, ...]:
    """The share of a step that overlapping with backward saved: work, saved, source, url."""
    return _published("overlaps")


def published_pipelines() -> tuple[PublishedPipeline, ...]:
    """Published speed-ups of pipelines with more GPUs."""
    return _published("pipelines", PublishedPipeline)


def published_steps() -> tuple[SimpleNamespace, ...]:
    """Published throughputs of steps on clusters, with their layouts; plan.py predicts them."""
    return tuple(
        SimpleNamespace(**suite, **row)
        for suite in _published("steps", dict)
        for row in suite.pop("rows")
    )


def links() -> tuple[SimpleNamespace, ...]:
    """Links between GPUs, the slowest first: name, bytes_per_second in one direction, source."""
    return _published("links")


def published_picture() -> Picture:
    """Only the published times, relative to their baselines."""
    title = "Published times of two GPUs"
    return durations(published_groups(), title=title, line_at=COMPARED_WITH)


def published_groups() -> list[BarGroup]:
    """A group for each suite; a bar is a time relative to `against`, the dashed line."""
    groups = []
    for suite, times in groupby(published_times(), key=lambda times: times.suite):
        rows = list(times)
        bars = [
            Duration(
                label=f"{row.work}: {mode}",
                seconds=seconds / row.seconds[row.against],
                value=f"{seconds:g} s · {row.speed_up(mode):.2f} ×",
                devices=2,
            )
            for row in rows
            for mode, seconds in row.seconds.items()
            if mode != row.against
        ]
        heading = f"Published: {suite}, {rows[0].hardware}"
        note = f"Time relative to {rows[0].against}. {rows[0].remark}."
        groups.append(BarGroup(heading, bars, note=note, against=1.0, compact=True))
    return groups
