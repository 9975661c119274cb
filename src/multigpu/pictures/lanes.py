"""Time: a lane for each device or rank, compute solid, communication striped."""

from collections.abc import Iterable
from math import floor, log10
from typing import NamedTuple

from multigpu.pictures.legend import legend
from multigpu.pictures.palette import colour_of, ink_on
from multigpu.pictures.picture import Picture
from multigpu.pictures.svg import line, rectangle, striped_bar, text, tooltip, width_of
from multigpu.pictures.units import human_seconds

KINDS = ("compute", "communication")
LANES = 340.0  # width of the time axis
LANE = 34.0
BLOCK = 20.0
TEXT_LANE = 56  # characters


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


def timeline(
    spans: Iterable[tuple[str, str, float, float, str]], *, title: str = "Who works when"
) -> Picture:
    """Draw `(lane, label, start, end, kind)`, in seconds; kind is `compute` or `communication`.

    Lanes come in the order in which they first appear; time starts at the earliest span.

    Raises ValueError for another kind, or a span that ends before it starts.
    """
    given = [Span(*span) for span in spans]
    for span in given:
        _refuse_nonsense(span)
    first = min((span.start for span in given), default=0.0)
    moved = [span._replace(start=span.start - first, end=span.end - first) for span in given]
    total = max((span.end for span in moved), default=0.0)
    names = list(dict.fromkeys(span.lane for span in moved))
    left = max((width_of(name) for name in names), default=0.0) + 10
    scale = LANES / total if total else 0.0
    bottom = len(names) * LANE
    body = [_axis(total, scale, left=left, bottom=bottom)]
    body += [text(0, (i + 0.5) * LANE, name, class_="strong") for i, name in enumerate(names)]
    body += [_block(span, names.index(span.lane), left=left, scale=scale) for span in moved]
    used = [kind for kind in KINDS if any(span.kind == kind for span in moved)]
    key, key_height = legend(used, left + LANES)
    body.append(f'<g transform="translate(0 {bottom + 26:g})">{key}</g>')
    return Picture(
        title=title,
        description=" ".join(f"{span}." for span in moved) or "Nothing happened.",
        width=left + LANES + 20,  # the last number of the axis is wider than its line
        height=bottom + 26 + key_height,
        body="".join(body),
        lines=tuple(_text_lines(moved, names, total)),
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


def _axis(total: float, scale: float, *, left: float, bottom: float) -> str:
    parts = [line(left, bottom, left + LANES, bottom, stroke="var(--line)")]
    for moment in _ticks(total):
        x = left + moment * scale
        parts.append(line(x, 0, x, bottom + 4, stroke="var(--edge)"))
        parts.append(
            text(x, bottom + 13, _short(moment), size=11, class_="muted", text_anchor="middle")
        )
    return "".join(parts)


def _ticks(total: float) -> list[float]:
    """Round moments from 0 to `total`: three to six of them."""
    if total <= 0:
        return [0.0]
    rough = total / 4
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [i * step for i in range(floor(total / step + 1e-9) + 1)]


def _short(moment: float) -> str:
    """A round moment without idle zeros: `5 ms`, not `5.00 ms`."""
    amount, unit = human_seconds(moment).split()
    return f"{amount.rstrip('0').rstrip('.') if '.' in amount else amount} {unit}"


def _block(span: Span, lane: int, *, left: float, scale: float) -> str:
    x, wide = left + span.start * scale, max((span.end - span.start) * scale, 1.0)
    y = (lane + 0.5) * LANE
    fill = colour_of(span.lane)
    if span.kind == "compute":
        top = y - BLOCK / 2
        bar = rectangle(x, top, wide, BLOCK, rx=3, fill=fill, stroke="var(--line)")
        style = f"fill:{ink_on(fill)}"
    else:
        bar = striped_bar(x, x + wide, y, BLOCK - 2, fill)
        style = "paint-order:stroke;stroke:var(--paper);stroke-width:4px"  # a rim: stripes are busy
    if width_of(span.label, size=11) > wide:
        return tooltip(str(span), bar)
    label = text(x + wide / 2, y, span.label, size=11, text_anchor="middle", style=style)
    return tooltip(str(span), bar, label)


def _text_lines(spans: list[Span], names: list[str], total: float) -> Iterable[str]:
    wide = max((len(name) for name in names), default=0)
    for name in names:
        row = ["·"] * TEXT_LANE
        for span in spans:
            if span.lane == name and total:
                first = floor(span.start / total * (TEXT_LANE - 1))
                last = max(first + 1, round(span.end / total * TEXT_LANE))
                row[first:last] = ("█" if span.kind == "compute" else "▒") * (last - first)
        yield f"  {name:<{wide}}  {''.join(row)}"
    if names:
        yield f"  {'':<{wide}}  0 to {human_seconds(total)};  █ compute  ▒ communication"
