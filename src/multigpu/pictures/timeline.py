"""Time: a lane for each device or rank, and what it does when.

`timeline` draws compute solid, communication striped, waiting as a thin line; what happens in a
lane at the same time is drawn in tracks below each other. `schedule` draws a pipeline: a block for
each micro-batch that a rank works on, forward pale, backward full; where a lane is empty the rank
idles: the bubble. Predicted and recorded schedules are drawn alike.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Callable, Iterable, Sequence
from math import floor, log10
from typing import Any, NamedTuple

from multigpu.pictures.palette import HOST, colour, colour_of, tint
from multigpu.pictures.picture import (
    Picture,
    line,
    rectangle,
    striped_bar,
    text,
    text_on,
    tooltip,
    width_of,
)
from multigpu.pictures.units import human_seconds

KINDS = ("compute", "communication", "waiting")
LETTERS = {"compute": "█", "communication": "▒", "waiting": "─"}
AXIS = 340.0  # length of the time axis
LANE, TRACK = 34.0, 24.0  # height of a lane with one track, and of each further one
MOST_TRACKS = 4  # what does not fit into these is drawn together in the last
MANY = 400  # spans; with more, neighbours that cannot be told apart are drawn as one
SIZE = 11.0
PALE = 0.4  # strength of a forward's colour
TEXT_LANE, TEXT_SCHEDULE = 56, 64  # characters


class TimelineSpan(NamedTuple):
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

    def as_one_of(self, count: int) -> TimelineSpan:
        """This span for `count` like it that are drawn as one: their details differ."""
        return self._replace(label=f"{count} × {self.label}", details="", of="")


Unit = tuple[TimelineSpan, ...]  # spans that stay in one track: waiting, and what it was for
Placed = list[
    tuple[TimelineSpan, int]
]  # the spans of a lane, each with its track, counted from the top


def timeline(
    spans: Iterable[Sequence[Any]],
    lanes: Iterable[str] = (),
    *,
    title: str = "Who works when",
) -> Picture:
    """Draw `(lane, label, start, end, kind)`, in seconds.

    `kind` is `compute`, `communication` or `waiting` (for others, before the data can move). Two
    more words may follow: what else is to say of it, and a name that it shares with those that it
    belongs to, such as the same all-reduce on other ranks.

    The lanes are those named in `lanes`, then the others in the order in which they first appear.
    Time starts at the earliest span.

    Raises ValueError for another kind, or a span that ends before it starts.
    """
    given = [TimelineSpan(*span) for span in spans]
    for span in given:
        where = f"{span.lane}, {span.label!r}"
        if span.kind not in KINDS:
            raise ValueError(f"{where}: kind must be one of {KINDS}, got {span.kind!r}")
        if span.end < span.start:
            raise ValueError(f"{where}: ends at {span.end} before its start {span.start}")
    first = min((span.start for span in given), default=0.0)
    moved = [span._replace(start=span.start - first, end=span.end - first) for span in given]
    total = max((span.end for span in moved), default=0.0)
    if len(moved) > MANY:
        moved = coarse(moved, total / AXIS)
    by_lane: dict[str, list[TimelineSpan]] = {name: [] for name in lanes}
    for span in moved:
        by_lane.setdefault(span.lane, []).append(span)
    placed = {name: _in_tracks(found) for name, found in by_lane.items()}
    left = max(map(width_of, placed), default=0.0) + 10
    scale = AXIS / total if total else 0.0
    body, top = [], 0.0
    for name, found in placed.items():
        body.append(text(0, top + LANE / 2, name, class_="strong"))
        for span, track in found:
            shape = _shape(span, left + span.start * scale, top + LANE / 2 + track * TRACK, scale)
            body.append(_moment(span.lane, span.start, str(span), shape, of=span.of))
        top += LANE + TRACK * (_tracks(found) - 1)
    axis = _axis(total, left=left, bottom=top, write=_short)
    used = [kind for kind in KINDS if any(span.kind == kind for span in moved)]
    return Picture.with_legend(
        title,
        [axis, *body],
        size=(left + AXIS + 20, top + 26),  # the last number of the axis is wider than its line
        says=[f"{span}." for span in moved],
        lines=_text_of_lanes(placed, total),
        kinds=used,
    )


def coarse(spans: Iterable[TimelineSpan], grain: float) -> list[TimelineSpan]:
    """Spans of one lane with one label that lie closer than `grain` to each other, as one.

    For pictures of more than can be seen. What waits for less than `grain` is left out.
    """
    merged: list[TimelineSpan] = []
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


def _tracks(placed: Placed) -> int:
    """How many tracks a lane needs."""
    return 1 + max((track for _, track in placed), default=0)


def _in_tracks(spans: list[TimelineSpan]) -> Placed:
    """Give each unit the highest track in which it overlaps nothing, work above all else."""
    units: list[Unit] = []
    for span in spans:
        before = units[-1][-1] if units else None
        if before and before.kind == "waiting" and before.end == span.start:
            units[-1] = (before, span)
        else:
            units.append((span,))
    taken: list[list[Unit]] = []  # each in the order of time
    crowd: list[Unit] = []  # those for which no track is left
    for unit in sorted(units, key=lambda unit: (unit[0].kind != "compute", _start(unit))):
        track = next((track for track in taken if _has_room(track, unit)), None)
        if track is not None:
            insort(track, unit, key=_start)
        elif len(taken) < MOST_TRACKS:
            taken.append([unit])
        else:
            crowd.append(unit)
    if crowd:
        taken[-1] = _merged([*taken[-1], *crowd])
    return [(span, i) for i, track in enumerate(taken) for unit in track for span in unit]


def _start(unit: Unit) -> float:
    return unit[0].start


def _has_room(track: list[Unit], unit: Unit) -> bool:
    """Whether the unit shares no more than a moment with its neighbours in a track."""
    place = bisect(track, _start(unit), key=_start)
    for other in track[max(place - 1, 0) : place + 1]:
        common = min(unit[-1].end, other[-1].end) - max(_start(unit), _start(other))
        shorter = min(each[-1].end - _start(each) for each in (unit, other))
        if common > 0.02 * shorter:
            return False
    return True


def _merged(units: list[Unit]) -> list[Unit]:
    """Units that overlap each other as one bar, with their number on it."""
    groups: list[list[Unit]] = []
    for unit in sorted(units, key=_start):
        if groups and _start(unit) < max(other[-1].end for other in groups[-1]):
            groups[-1].append(unit)
        else:
            groups.append([unit])
    merged = []
    for group in groups:
        last = group[0][-1].as_one_of(len(group))
        start, end = min(unit[-1].start for unit in group), max(unit[-1].end for unit in group)
        merged.append(group[0] if len(group) == 1 else (last._replace(start=start, end=end),))
    return merged


def _shape(span: TimelineSpan, x: float, y: float, scale: float) -> str:
    wide, high, fill = max((span.end - span.start) * scale, 1.0), 20.0, colour_of(span.lane)
    if span.kind == "waiting":  # what is only a thin line needs room for the pointer
        room = rectangle(x, y - high / 2, wide, high, fill="none", pointer_events="all")
        return room + line(x, y, x + wide, y, stroke=fill, stroke_width=2.5)
    fits = width_of(span.label, size=SIZE) <= wide
    if span.kind == "compute":
        bar = rectangle(x, y - high / 2, wide, high, rx=3, fill=fill, stroke="var(--line)")
        return bar + (text_on(fill, x + wide / 2, y, span.label, size=SIZE) if fits else "")
    bar = striped_bar(x, x + wide, y, high - 2, fill)
    rim = "paint-order:stroke;stroke:var(--paper);stroke-width:4px"  # stripes are busy
    label = text(x + wide / 2, y, span.label, size=SIZE, text_anchor="middle", style=rim)
    return bar + (label if fits else "")


def _moment(lane: str, start: float, content: str, *children: str, of: str) -> str:
    """A part of a picture of time, which says `content`, for the pointer and for the site's script.

    `lane` and `start` are its place in time. Parts with the same `of` belong together: the calls of
    one collective on its ranks, the work on one micro-batch.
    """
    return tooltip(
        content, *children, data_lane=lane, data_start=f"{start:.6g}", data_of=of or None
    )


def _axis(total: float, *, left: float, bottom: float, write: Callable[[float], str]) -> str:
    """The axis from 0 to `total` below lanes: three to six round moments, and their lines."""
    parts = [line(left, bottom, left + AXIS, bottom, stroke="var(--line)")]
    moments = [0.0]
    if total > 0:
        power = 10.0 ** floor(log10(total / 4))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= total / 4)
        moments = [i * step for i in range(floor(total / step + 1e-9) + 1)]
    for moment in moments:
        x = left + (moment * AXIS / total if total else 0.0)
        parts.append(line(x, 0, x, bottom + 4, stroke="var(--edge)"))
        words = write(moment)
        parts.append(text(x, bottom + 13, words, size=SIZE, class_="muted", text_anchor="middle"))
    return "".join(parts)


def _short(moment: float) -> str:
    """A round moment without idle zeros: `5 ms`, not `5.00 ms`."""
    amount, unit = human_seconds(moment).split()
    return f"{amount.rstrip('0').rstrip('.') if '.' in amount else amount} {unit}"


def _text_of_lanes(lanes: dict[str, Placed], total: float) -> Iterable[str]:
    wide = max(map(len, lanes), default=0)
    for name, placed in lanes.items():
        for track in range(_tracks(placed)):
            row = ["·"] * TEXT_LANE
            for span, where in placed:
                if where == track and total:
                    first = floor(span.start / total * (TEXT_LANE - 1))
                    last = max(first + 1, round(span.end / total * TEXT_LANE))
                    row[first:last] = LETTERS[span.kind] * (last - first)
            yield f"  {'' if track else name:<{wide}}  {''.join(row)}"
    if lanes:
        waiting = any(span.kind == "waiting" for placed in lanes.values() for span, _ in placed)
        key = "  ".join(f"{LETTERS[kind]} {kind}" for kind in KINDS[: 3 if waiting else 2])
        yield f"  {'':<{wide}}  0 to {human_seconds(total)};  {key}"


def schedule(
    steps: Iterable[Any], *, title: str = "Who computes which micro-batch", seconds: bool = True
) -> Picture:
    """Draw steps with `rank`, `kind` (`forward` or `backward`), `micro_batch`, `start` and `end`.

    `seconds=False`: the times are of no unit, as in a schedule whose costs are 1 and 2. A step that
    has a `stage` other than its rank is of an interleaved schedule: its number gets a mark for each
    round (0, 0\u2032).

    Raises ValueError for a step that ends before it starts.
    """
    given = list(steps)
    for step in given:
        if step.end < step.start:
            raise ValueError(f"{step}: ends at {step.end} before its start {step.start}")
    first = min((step.start for step in given), default=0.0)
    total = max((step.end for step in given), default=0.0) - first
    ranks = max((step.rank for step in given), default=-1) + 1
    write = human_seconds if seconds else "{:g}".format
    left, high, bottom = 56.0, 24.0, ranks * LANE + 2
    body = [_axis(total, left=left, bottom=bottom, write=_short if seconds else write)]
    for rank in range(ranks):
        middle = rank * LANE + LANE / 2
        body.append(text(0, middle, f"rank {rank}", class_="strong"))
        body.append(rectangle(left, middle - high / 2, AXIS, high, rx=3, fill="var(--band)"))
    said = []
    for step in given:
        start, end = step.start - first, step.end - first
        stage = getattr(step, "stage", step.rank)
        where = "" if stage == step.rank else f", stage {stage}"
        said.append(
            f"rank {step.rank}{where}: {step.kind} {step.micro_batch}, "
            f"from {write(start)} to {write(end)}"
        )
        full = colour(step.rank)
        fill = tint(full, PALE) if step.kind == "forward" else full
        scale = AXIS / total if total else 0.0
        x, wide = left + start * scale, max((end - start) * scale, 1.0)
        middle = step.rank * LANE + LANE / 2
        rim = min(wide / 8, 0.75)  # neighbours are told apart
        shape = rectangle(x + rim, middle - high / 2, wide - 2 * rim, high, rx=min(3.0, wide / 4),
                          fill=fill, stroke=full)  # fmt: skip
        label = str(step.micro_batch) + "\u2032" * (int(stage) // ranks)
        if width_of(label, size=SIZE) <= wide:
            shape += text_on(fill, x + wide / 2, middle, label, size=SIZE)
        of = f"micro-batch {step.micro_batch}"
        body.append(_moment(f"rank {step.rank}", start, said[-1], shape, of=of))
    return Picture.with_legend(
        title,
        body,
        size=(left + AXIS + 20, bottom + 26),
        says=[f"{sentence}." for sentence in said],
        lines=_text_of_schedule(given, ranks, first, total, write, seconds=seconds),
        fills={"forward": tint(HOST, PALE), "backward": HOST},
        notes=["number: the micro-batch", "empty: idle"],
    )


def _text_of_schedule(
    steps: Sequence[Any],
    ranks: int,
    first: float,
    total: float,
    write: Callable[[float], str],
    *,
    seconds: bool,
) -> Iterable[str]:
    wide = TEXT_SCHEDULE
    if not seconds and 0 < total <= wide:  # every unit as wide as the next
        wide = round(total * (wide // total))
    for rank in range(ranks):
        row = ["·"] * wide
        for step in (step for step in steps if step.rank == rank and total):
            begin = floor((step.start - first) / total * wide + 0.5)
            end = max(begin + 1, floor((step.end - first) / total * wide + 0.5))
            fill = "░" if step.kind == "forward" else "█"
            number = str(step.micro_batch) if end - begin > len(str(step.micro_batch)) else ""
            row[begin:end] = number.ljust(end - begin, fill)[: wide - begin]
        yield f"  rank {rank}  {''.join(row)}"
    if ranks:
        yield f"  {'':6}  0 to {write(total)};  ░ forward  █ backward  · idle"
