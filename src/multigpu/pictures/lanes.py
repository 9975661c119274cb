"""Time: a lane for each device or rank, compute solid, communication striped, waiting a thin line.

What happens in a lane at the same time is drawn in tracks below each other.
"""

from collections.abc import Iterable, Sequence
from math import floor
from typing import Any

from multigpu.pictures.legend import legend
from multigpu.pictures.palette import colour_of, ink_on
from multigpu.pictures.picture import Picture
from multigpu.pictures.svg import line, moment, rectangle, striped_bar, text, width_of
from multigpu.pictures.time_axis import LANES, time_axis
from multigpu.pictures.tracks import Lane, Span, coarse, in_lanes
from multigpu.pictures.units import human_seconds

KINDS = ("compute", "communication", "waiting")
LANE = 34.0  # height of a lane with one track
BLOCK = 20.0
TRACK = 24.0  # height of a further track
MANY = 400  # spans; with more, neighbours that cannot be told apart are drawn as one
TEXT_LANE = 56  # characters
LETTERS = {"compute": "█", "communication": "▒", "waiting": "─"}


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
    given = [Span(*span) for span in spans]
    for span in given:
        _refuse_nonsense(span)
    first = min((span.start for span in given), default=0.0)
    moved = [span._replace(start=span.start - first, end=span.end - first) for span in given]
    total = max((span.end for span in moved), default=0.0)
    if len(moved) > MANY:
        moved = coarse(moved, total / LANES)
    drawn = in_lanes(moved, lanes)
    left = max((width_of(lane.name) for lane in drawn), default=0.0) + 10
    scale = LANES / total if total else 0.0
    tops = [sum(LANE + TRACK * (lane.tracks - 1) for lane in drawn[:i]) for i in range(len(drawn))]
    bottom = sum(LANE + TRACK * (lane.tracks - 1) for lane in drawn)
    body = [time_axis(total, scale, left=left, bottom=bottom)]
    for lane, top in zip(drawn, tops, strict=True):
        body.append(text(0, top + LANE / 2, lane.name, class_="strong"))
        for span, track in lane.spans:
            y = top + LANE / 2 + track * TRACK
            body.append(_block(span, y, left=left, scale=scale))
    used = [kind for kind in KINDS if any(span.kind == kind for span in moved)]
    key, key_height = legend(used, left + LANES)
    body.append(f'<g transform="translate(0 {bottom + 26:g})">{key}</g>')
    return Picture(
        title=title,
        description=" ".join(f"{span}." for span in moved) or "Nothing happened.",
        width=left + LANES + 20,  # the last number of the axis is wider than its line
        height=bottom + 26 + key_height,
        body="".join(body),
        lines=tuple(_text_lines(drawn, total)),
    )


def _refuse_nonsense(span: Span) -> None:
    if span.kind not in KINDS:
        raise ValueError(
            f"{span.lane}, {span.label!r}: kind must be one of {KINDS}, got {span.kind!r}"
        )
    if span.end < span.start:
        raise ValueError(
            f"{span.lane}, {span.label!r}: ends at {span.end} before its start {span.start}"
        )


def _block(span: Span, y: float, *, left: float, scale: float) -> str:
    x, wide = left + span.start * scale, max((span.end - span.start) * scale, 1.0)
    fill = colour_of(span.lane)
    if span.kind == "waiting":
        # What is only a thin line needs room for the pointer.
        room = rectangle(x, y - BLOCK / 2, wide, BLOCK, fill="none", pointer_events="all")
        return _part(span, room, line(x, y, x + wide, y, stroke=fill, stroke_width=2.5))
    if span.kind == "compute":
        top = y - BLOCK / 2
        bar = rectangle(x, top, wide, BLOCK, rx=3, fill=fill, stroke="var(--line)")
        style = f"fill:{ink_on(fill)}"
    else:
        bar = striped_bar(x, x + wide, y, BLOCK - 2, fill)
        style = "paint-order:stroke;stroke:var(--paper);stroke-width:4px"  # a rim: stripes are busy
    if width_of(span.label, size=11) > wide:
        return _part(span, bar)
    label = text(x + wide / 2, y, span.label, size=11, text_anchor="middle", style=style)
    return _part(span, bar, label)


def _part(span: Span, *shapes: str) -> str:
    return moment(span.lane, span.start, str(span), *shapes, of=span.of)


def _text_lines(lanes: list[Lane], total: float) -> Iterable[str]:
    wide = max((len(lane.name) for lane in lanes), default=0)
    for lane in lanes:
        for track in range(lane.tracks):
            row = ["·"] * TEXT_LANE
            for span, where in lane.spans:
                if where == track and total:
                    first = floor(span.start / total * (TEXT_LANE - 1))
                    last = max(first + 1, round(span.end / total * TEXT_LANE))
                    row[first:last] = LETTERS[span.kind] * (last - first)
            yield f"  {'' if track else lane.name:<{wide}}  {''.join(row)}"
    if lanes:
        waiting = any(span.kind == "waiting" for lane in lanes for span, _ in lane.spans)
        key = "  ".join(f"{LETTERS[kind]} {kind}" for kind in KINDS[: 3 if waiting else 2])
        yield f"  {'':<{wide}}  0 to {human_seconds(total)};  {key}"
