"""Timelines: a lane for each device or rank shows what it does when.

`timeline` draws compute solid, communication striped, waiting as a thin line; what happens in a
lane at the same time is drawn in tracks below each other. `schedule` draws a pipeline: a block for
each micro-batch that a rank works on, forward pale, backward full; where a lane is empty, the rank
is idle (the bubble). Predicted and recorded schedules are drawn alike.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import floor
from typing import Any, NamedTuple

from multigpu.pictures.palette import HOST, color_of, tint
from multigpu.pictures.picture import (
    Picture,
    line,
    rectangle,
    round_step,
    striped_bar,
    text,
    text_on,
    tooltip,
    width_of,
)
from multigpu.pictures.units import human_seconds

KINDS = ("compute", "communication", "waiting")
LETTERS = {
    "compute": "█", "communication": "▒", "waiting": "─", "forward": "░", "backward": "█",
}  # fmt: skip
AXIS = 340.0  # length of the time axis
LANE, TRACK = 34.0, 24.0  # height of a lane with one track, and of each further one
MOST_TRACKS = 4  # what does not fit into these is drawn together in the last
MANY = 400  # spans; with more, neighbors too close to distinguish are drawn as one
SIZE = 11.0
PALE = 0.4  # strength of a forward's color
TEXT_LANE, TEXT_SCHEDULE = 56, 64  # characters


class TimelineSpan(NamedTuple):
    """Something that took time in a lane, from `start` to `end` in seconds.

    `details` is further text about it. Spans with the same `of` belong together, such as the calls
    of one collective on its ranks.
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


Tracks = Sequence[Sequence[TimelineSpan]]  # of a lane, from the top


def timeline(
    spans: Iterable[Sequence[Any]],
    lanes: Iterable[str] = (),
    *,
    title: str = "Who works when",
) -> Picture:
    """Draw `(lane, label, start, end, kind)`, in seconds.

    `kind` is `compute`, `communication` or `waiting` (for others, before the data can move). Two
    more strings may follow: further text, and a name that it shares with related spans, such as the
    same all-reduce on other ranks.

    The lanes are those named in `lanes`, then the others in the order in which they first appear.
    Time starts at the earliest span. Raises ValueError for another kind.
    """
    given = [TimelineSpan(*span) for span in spans]
    for span in given:
        if span.kind not in KINDS:
            raise ValueError(
                f"{span.lane}, {span.label!r}: kind must be one of {KINDS}, got {span.kind!r}"
            )
    first = min((span.start for span in given), default=0.0)
    moved = [span._replace(start=span.start - first, end=span.end - first) for span in given]
    total = max((span.end for span in moved), default=0.0)
    if len(moved) > MANY:
        grain = total / AXIS
        seen = [s for s in moved if s.kind != "waiting" or s.end - s.start >= grain]
        moved = _merged(seen, grain, key=lambda span: (span.lane, span.label, span.kind))
    by_lane: dict[str, list[TimelineSpan]] = {name: [] for name in lanes}
    for span in moved:
        by_lane.setdefault(span.lane, []).append(span)
    used = [kind for kind in KINDS if any(span.kind == kind for span in moved)]
    placed = {name: _in_tracks(found) for name, found in by_lane.items()}
    body, size = _drawn(placed, total, _short, says=str)
    key = [f"{LETTERS[kind]} {kind}" for kind in KINDS if kind != "waiting" or kind in used]
    return Picture(
        title,
        body,
        size=size,
        says=[f"{span}." for span in moved],
        lines=_in_letters(placed, total, human_seconds(total), TEXT_LANE, key),
        kinds=used,
    )


def schedule(
    steps: Iterable[Any], *, title: str = "Who computes which micro-batch", seconds: bool = True
) -> Picture:
    """Draw steps with `rank`, `kind` (`forward` or `backward`), `micro_batch`, `start` and `end`.

    `seconds=False`: the times have no unit, as in a schedule whose costs are 1 and 2. A step whose
    `stage` differs from its rank belongs to an interleaved schedule: its number gets a mark for
    each round (0, 0\u2032).
    """
    given = list(steps)
    first = min((step.start for step in given), default=0.0)
    total = max((step.end for step in given), default=0.0) - first
    ranks = max((step.rank for step in given), default=-1) + 1
    spans = []
    for step in given:
        stage = getattr(step, "stage", step.rank)
        lane, mark = f"rank {step.rank}", "\u2032" * (stage // ranks)
        details = "" if stage == step.rank else f", stage {stage}"
        label, of = f"{step.micro_batch}{mark}", f"micro-batch {step.micro_batch}"
        start, end = step.start - first, step.end - first
        spans.append(TimelineSpan(lane, label, start, end, step.kind, details, of))
    write = human_seconds if seconds else "{:g}".format

    def says(span: TimelineSpan) -> str:
        number = span.label.rstrip("\u2032")
        when = f"from {write(span.start)} to {write(span.end)}"
        return f"{span.lane}{span.details}: {span.kind} {number}, {when}"

    wide = TEXT_SCHEDULE
    if not seconds and 0 < total <= wide:  # every unit as wide as the next
        wide = round(total * (wide // total))
    lanes = [f"rank {rank}" for rank in range(ranks)]
    placed = {lane: [[span for span in spans if span.lane == lane]] for lane in lanes}
    body, size = _drawn(placed, total, _short if seconds else write, says=says, band=True)
    return Picture(
        title,
        body,
        size=size,
        says=[f"{says(span)}." for span in spans],
        lines=_in_letters(placed, total, write(total), wide, ["░ forward", "█ backward", "· idle"]),
        fills={"forward": tint(HOST, PALE), "backward": HOST},
        notes=["number: the micro-batch", "empty: idle"],
    )


def _merged(
    spans: Iterable[TimelineSpan],
    grain: float = 0.0,
    key: Callable[[TimelineSpan], object] = lambda span: None,
) -> list[TimelineSpan]:
    """Spans of one `key` closer than `grain` to each other, merged into one with their number."""
    groups: list[list[TimelineSpan]] = []
    latest: dict[object, tuple[list[TimelineSpan], float]] = {}  # of a key: its group, and its end
    for span in sorted(spans, key=lambda span: span.start):
        group, end = latest.get(key(span), ([], float("-inf")))
        if span.start - end >= grain:
            group = []
            groups.append(group)
        group.append(span)
        latest[key(span)] = group, max(end, span.end)
    return [
        group[0] if len(group) == 1 else group[0]._replace(
            label=f"{len(group)} × {group[0].label}",
            end=max(span.end for span in group),
            details="",  # each has its own
            of="",
        )
        for group in groups
    ]  # fmt: skip


def _in_tracks(spans: Iterable[TimelineSpan]) -> Tracks:
    """Give each span of a lane the highest track in which it overlaps nothing, work above all."""
    units: list[list[TimelineSpan]] = []  # what stays in one track: waiting, and what it was for
    for span in spans:
        if units and units[-1][-1].kind == "waiting" and units[-1][-1].end == span.start:
            units[-1].append(span)
        else:
            units.append([span])
    tracks: list[list[list[TimelineSpan]]] = []
    crowded = False
    for unit in sorted(units, key=lambda unit: (unit[0].kind != "compute", unit[0].start)):
        free = (track for track in tracks if not any(_overlap(unit, other) for other in track))
        if (track := next(free, None)) is not None:
            track.append(unit)
        elif len(tracks) < MOST_TRACKS:
            tracks.append([unit])
        else:
            tracks[-1].append(unit)
            crowded = True
    placed = [[span for unit in track for span in unit] for track in tracks]
    if crowded:
        placed[-1] = _merged(unit[-1] for unit in tracks[-1])
    return placed


def _overlap(one: Sequence[TimelineSpan], other: Sequence[TimelineSpan]) -> bool:
    """Whether two units share more than a moment."""
    common = min(one[-1].end, other[-1].end) - max(one[0].start, other[0].start)
    return common > 0.02 * min(one[-1].end - one[0].start, other[-1].end - other[0].start)


def _drawn(
    lanes: Mapping[str, Tracks],
    total: float,
    write: Callable[[float], str],
    *,
    says: Callable[[TimelineSpan], str],
    band: bool = False,
) -> tuple[list[str], tuple[float, float]]:
    """Lanes above an axis from 0 to `total`: markup, and its width and height.

    Each span has its lane, its start and what it belongs to as data, for the site's script.
    """
    left = floor(max(map(width_of, lanes), default=46.0) + 10)
    scale = AXIS / total if total else 0.0
    body, shapes, y = [], [], 0.0
    for name, tracks in lanes.items():
        body.append(text(0, y + LANE / 2, name, class_="strong"))
        if band:  # an idle lane is seen
            body.append(rectangle(left, y + 5, AXIS, LANE - 10, rx=3, fill="var(--band)"))
        for number, track in enumerate(tracks):
            for span in track:
                shape = _shape(
                    span, left + span.start * scale, y + LANE / 2 + number * TRACK, scale
                )
                data = {"data_lane": span.lane, "data_start": f"{span.start:.6g}"}
                shown = tooltip(says(span), shape, **data, data_of=span.of or None)
                shapes.append((span.start, shown))
        y += LANE + TRACK * (max(len(tracks), 1) - 1)
    y += 2
    axis = [line(left, y, left + AXIS, y, stroke="var(--line)")]
    step = round_step(total / 4) if total else 1.0  # three to six moments
    for number in range(floor(total / step + 1e-9) + 1):
        x = left + number * step * scale
        axis.append(line(x, 0, x, y + 4, stroke="var(--edge)"))
        words = write(number * step)
        axis.append(text(x, y + 13, words, size=SIZE, class_="muted", text_anchor="middle"))
    shapes.sort(key=lambda each: each[0])
    return [*axis, *body, *(shape for _, shape in shapes)], (
        left + AXIS + 20,
        y + 26,
    )  # the last number is wider than its line


def _shape(span: TimelineSpan, x: float, y: float, scale: float) -> str:
    wide, fill = max((span.end - span.start) * scale, 1.0), color_of(span.lane)
    high = 24.0 if span.kind in ("forward", "backward") else 20.0
    fits = width_of(span.label, size=SIZE) <= wide
    if span.kind == "waiting":  # what is only a thin line needs room for the pointer
        room = rectangle(x, y - high / 2, wide, high, fill="none", pointer_events="all")
        return room + line(x, y, x + wide, y, stroke=fill, stroke_width=2.5)
    if span.kind == "communication":
        rim = "paint-order:stroke;stroke:var(--paper);stroke-width:4px"  # stripes are busy
        label = text(x + wide / 2, y, span.label, size=SIZE, text_anchor="middle", style=rim)
        return striped_bar(x, x + wide, y, high - 2, fill) + (label if fits else "")
    if span.kind == "compute":
        bar = rectangle(x, y - high / 2, wide, high, rx=3, fill=fill, stroke="var(--line)")
    else:
        edge = min(wide / 8, 0.75)  # keeps neighbors apart
        fill, rim = tint(fill, PALE) if span.kind == "forward" else fill, fill
        bar = rectangle(x + edge, y - high / 2, wide - 2 * edge, high, rx=min(3.0, wide / 4),
                        fill=fill, stroke=rim)  # fmt: skip
    return bar + (text_on(fill, x + wide / 2, y, span.label, size=SIZE) if fits else "")


def _short(moment: float) -> str:
    """A round time without trailing zeros: `5 ms`, not `5.00 ms`."""
    amount, unit = human_seconds(moment).split()
    return f"{amount.rstrip('0').rstrip('.') if '.' in amount else amount} {unit}"


def _in_letters(
    lanes: Mapping[str, Tracks], total: float, end: str, wide: int, key: Sequence[str]
) -> Iterable[str]:
    """Lanes of `wide` characters, with their letters' `key`; blocks of a schedule have numbers."""
    names = max(map(len, lanes), default=0)
    for name, tracks in lanes.items():
        for number, track in enumerate(tracks or [[]]):
            row = ["·"] * wide
            for span in track if total else ():
                first = floor(span.start / total * wide + 0.5)
                last = max(first + 1, floor(span.end / total * wide + 0.5))
                label = span.label if span.kind in ("forward", "backward") else ""
                label = label.rstrip("\u2032") if last - first > len(label) else ""
                row[first:last] = label.ljust(last - first, LETTERS[span.kind])[: wide - first]
            yield f"  {'' if number else name:<{names}}  {''.join(row)}"
    if lanes:
        yield f"  {'':<{names}}  0 to {end};  {'  '.join(key)}"
