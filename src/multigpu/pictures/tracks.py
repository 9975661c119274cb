"""Lanes of a timeline, and how what overlaps in one is put into tracks below each other."""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from multigpu.pictures.units import human_seconds

MOST_TRACKS = 4  # what does not fit into these is drawn together in the last


class Span(NamedTuple):
    """Something that took time in a lane, from `start` to `end` in seconds.

    `details` is what else there is to say of it. Spans with the same `of` belong together, such as
    the calls of one collective on its ranks.
    """

    lane: str
    label: str
    start: float
    end: float
    kind: str
    details: str = ""
    of: str = ""

    def __str__(self) -> str:
        took, start, end = map(human_seconds, (self.end - self.start, self.start, self.end))
        details = f"; {self.details}" if self.details else ""
        return f"{self.lane}: {self.label} ({self.kind}), {took} from {start} to {end}{details}"

    def as_one_of(self, count: int) -> Span:
        """This span for `count` like it that are drawn as one: their details differ."""
        return self._replace(label=f"{count} × {self.label}", details="", of="")


@dataclass(frozen=True)
class Lane:
    """The spans of one device or rank, each with its track, counted from the top."""

    name: str
    spans: list[tuple[Span, int]]

    @property
    def tracks(self) -> int:
        """How many tracks it needs."""
        return 1 + max((track for _, track in self.spans), default=0)


def coarse(spans: Iterable[Span], grain: float) -> list[Span]:
    """Spans of one lane with one label that lie closer than `grain` to each other, as one.

    For pictures of more than can be seen. What waits for less than `grain` is left out.
    """
    merged: list[Span] = []
    counts: list[int] = []
    latest: dict[tuple[str, str, str], int] = {}  # where the last one of a kind is
    for span in sorted(spans, key=lambda span: span.start):
        if span.kind == "waiting" and span.end - span.start < grain:
            continue
        kind = span.lane, span.label, span.kind
        place = latest.get(kind)
        if place is not None and span.start - merged[place].end < grain:
            merged[place] = merged[place]._replace(end=max(merged[place].end, span.end))
            counts[place] += 1
        else:
            latest[kind] = len(merged)
            merged.append(span)
            counts.append(1)
    return [
        span if count == 1 else span.as_one_of(count)
        for span, count in zip(merged, counts, strict=True)
    ]


class Unit(NamedTuple):
    """Spans that stay in one track: waiting, and the communication that it was for."""

    spans: tuple[Span, ...]

    @property
    def start(self) -> float:
        return self.spans[0].start

    @property
    def end(self) -> float:
        return self.spans[-1].end


def in_lanes(spans: Iterable[Span], names: Iterable[str] = ()) -> list[Lane]:
    """Lanes: those of `names`, then others as they first appear; work above what overlaps it."""
    by_name: dict[str, list[Span]] = {name: [] for name in names}
    for span in spans:
        by_name.setdefault(span.lane, []).append(span)
    return [Lane(name, _in_tracks(_units(found))) for name, found in by_name.items()]


def _units(spans: list[Span]) -> list[Unit]:
    units: list[Unit] = []
    for span in spans:
        before = units[-1].spans[-1] if units else None
        if before and before.kind == "waiting" and before.end == span.start:
            units[-1] = Unit((before, span))
        else:
            units.append(Unit((span,)))
    return units


def _in_tracks(units: list[Unit]) -> list[tuple[Span, int]]:
    """Give each unit the highest track in which it overlaps nothing."""
    taken: list[list[Unit]] = []  # each in the order of time
    crowd: list[Unit] = []  # those for which no track is left
    for unit in sorted(units, key=lambda unit: (unit.spans[0].kind != "compute", unit.start)):
        track = next((track for track in taken if _has_room(track, unit)), None)
        if track is None and len(taken) < MOST_TRACKS:
            track = []
            taken.append(track)
        if track is None:
            crowd.append(unit)
        else:
            insort(track, unit, key=lambda other: other.start)
    if crowd:
        taken[-1] = _merged([*taken[-1], *crowd])
    return [(span, i) for i, track in enumerate(taken) for unit in track for span in unit.spans]


def _merged(units: list[Unit]) -> list[Unit]:
    """Units that overlap each other as one bar, with their number on it."""
    groups: list[list[Unit]] = []
    for unit in sorted(units, key=lambda unit: unit.start):
        if groups and unit.start < max(other.end for other in groups[-1]):
            groups[-1].append(unit)
        else:
            groups.append([unit])
    return [_as_one(group) for group in groups]


def _as_one(units: list[Unit]) -> Unit:
    if len(units) == 1:
        return units[0]
    last = units[0].spans[-1]
    start = min(unit.spans[-1].start for unit in units)
    end = max(unit.end for unit in units)
    return Unit((last.as_one_of(len(units))._replace(start=start, end=end),))


def _has_room(track: list[Unit], unit: Unit) -> bool:
    place = bisect(track, unit.start, key=lambda other: other.start)
    return not any(_overlap(unit, other) for other in track[max(place - 1, 0) : place + 1])


def _overlap(one: Unit, other: Unit) -> bool:
    """Whether two units share more than a moment at their ends."""
    common = min(one.end, other.end) - max(one.start, other.start)
    return common > 0.02 * min(one.end - one.start, other.end - other.start)
