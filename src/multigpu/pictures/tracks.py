"""Lanes of a timeline, and how what overlaps in one is put into tracks below each other."""

from bisect import bisect, insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from multigpu.pictures.units import human_seconds

MOST_TRACKS = 4  # what does not fit into these is drawn over something else


class Span(NamedTuple):
    """Something that took time in a lane, from `start` to `end` in seconds."""

    lane: str
    label: str
    start: float
    end: float
    kind: str

    def __str__(self) -> str:
        took = human_seconds(self.end - self.start)
        return f"{self.lane}: {self.label} ({self.kind}), {took} from {human_seconds(self.start)}"


@dataclass(frozen=True)
class Lane:
    """The spans of one device or rank, each with its track, counted from the top."""

    name: str
    spans: list[tuple[Span, int]]

    @property
    def tracks(self) -> int:
        """How many tracks it needs."""
        return 1 + max((track for _, track in self.spans), default=0)


def in_lanes(spans: Iterable[Span], names: Iterable[str] = ()) -> list[Lane]:
    """Lanes: those of `names`, then others as they first appear; work above what overlaps it."""
    by_name: dict[str, list[Span]] = {name: [] for name in names}
    for span in spans:
        by_name.setdefault(span.lane, []).append(span)
    return [Lane(name, _in_tracks(found)) for name, found in by_name.items()]


def _in_tracks(spans: list[Span]) -> list[tuple[Span, int]]:
    """Give each span the highest track in which it overlaps nothing."""
    taken: list[list[Span]] = []  # each in the order of time
    placed: list[tuple[Span, int]] = []
    for span in sorted(spans, key=lambda span: (span.kind != "compute", span.start, -span.end)):
        free = (i for i, track in enumerate(taken) if _has_room(track, span))
        track = min(next(free, len(taken)), MOST_TRACKS - 1)
        if track == len(taken):
            taken.append([])
        insort(taken[track], span, key=lambda other: other.start)
        placed.append((span, track))
    return placed


def _has_room(track: list[Span], span: Span) -> bool:
    place = bisect(track, span.start, key=lambda other: other.start)
    return not any(_overlap(span, other) for other in track[max(place - 1, 0) : place + 1])


def _overlap(one: Span, other: Span) -> bool:
    """Whether two spans share more than a moment at their ends."""
    common = min(one.end, other.end) - max(one.start, other.start)
    return common > 0.02 * min(one.end - one.start, other.end - other.start)
