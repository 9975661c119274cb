"""Times and efficiencies that others have published, each with its source (published.toml).

for row in published_times():
    print(row.work, row.speed_up("ddp"), row.remark)
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from multigpu.scaling.pipelining import bubble
from multigpu.scaling.speed_up import speed_up


@dataclass(frozen=True)
class PublishedTimes:
    """Seconds of one piece of work by mode, as they were printed."""

    work: str
    suite: str  # whose: bars of one suite are drawn together
    hardware: str
    seconds: Mapping[str, float]
    source: str
    url: str
    like_for_like: bool
    remark: str

    @property
    def against(self) -> str:
        """The mode the others are compared with: single where it was measured, else dp."""
        return "single" if "single" in self.seconds else "dp"

    def speed_up(self, mode: str) -> float:
        """How many times as fast as `against`."""
        return speed_up(one=self.seconds[self.against], many=self.seconds[mode])


@dataclass(frozen=True)
class PublishedEfficiency:
    """The share of the ideal speed-up on many GPUs, as it was printed."""

    work: str
    gpus: int
    hardware: str
    efficiency: float
    source: str
    url: str


@dataclass(frozen=True)
class PublishedOverlap:
    """The share of a step that was saved by communicating during backward."""

    work: str
    saved: float
    source: str
    url: str


@dataclass(frozen=True)
class PublishedPipeline:
    """How fast a pipeline was on several numbers of GPUs: as seconds, or as speeds."""

    work: str
    gpus: Sequence[int]
    micro_batches: int
    source: str
    url: str
    remark: str
    seconds: Sequence[float] = ()
    speeds: Sequence[float] = ()  # how many times as fast as the source's own standard

    @property
    def gains(self) -> list[float]:
        """How many times as fast as with the fewest GPUs."""
        if self.seconds:
            return [self.seconds[0] / each for each in self.seconds]
        return [each / self.speeds[0] for each in self.speeds]

    @property
    def predicted_gains(self) -> list[float]:
        """The same if only the bubble counts: p GPUs do the work of p · (1 - bubble)."""
        useful = [p * (1 - bubble(p, self.micro_batches)) for p in self.gpus]
        return [each / useful[0] for each in useful]


@dataclass(frozen=True)
class Link:
    """A link between GPUs, as its maker describes it."""

    name: str
    bytes_per_second: float  # in one direction
    source: str


def published_times() -> tuple[PublishedTimes, ...]:
    """Single against DP against DDP, elsewhere."""
    return tuple(PublishedTimes(**row) for row in _file()["times"])


def published_efficiencies() -> tuple[PublishedEfficiency, ...]:
    """How much of many GPUs was left, elsewhere."""
    return tuple(PublishedEfficiency(**row) for row in _file()["efficiencies"])


def published_overlaps() -> tuple[PublishedOverlap, ...]:
    """What overlapping communication with backward saved, elsewhere."""
    return tuple(PublishedOverlap(**row) for row in _file()["overlaps"])


def published_pipelines() -> tuple[PublishedPipeline, ...]:
    """What pipelines gained from more GPUs, elsewhere."""
    return tuple(PublishedPipeline(**row) for row in _file()["pipelines"])


def links() -> tuple[Link, ...]:
    """Links between GPUs, the slowest first."""
    found = (Link(**row) for row in _file()["links"])
    return tuple(sorted(found, key=lambda link: link.bytes_per_second))


@cache
def _file() -> dict[str, Any]:
    text = (Path(__file__).parent / "published.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
