"""Bars and curves: memory, times, rows, and how a figure changes along a setting.

All bars are drawn by `_drawn`: a label, a number, and stretches of colour on a common scale. A bar
that belongs to a GPU or rank has its colour, others are grey. Solid is compute, striped is
communication; a dashed line is what a bar is compared with, a solid one the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import ceil, floor, log10
from statistics import fmean
from textwrap import wrap
from typing import Any

from multigpu.pictures.palette import HOST, colour, colour_of, tint
from multigpu.pictures.picture import (
    Picture,
    element,
    line,
    rectangle,
    striped_bar,
    text,
    text_on,
    tooltip,
    width_of,
)
from multigpu.pictures.units import exact_bytes, human_bytes, human_seconds

WIDTH = 420.0
ROW, BAR = 44.0, 17.0
COMPACT_ROW, COMPACT_LEFT = 20.0, 156.0
BARS = 312.0  # where bars of time end, and their numbers begin
SQUARE, MOST_SQUARES = 8.0, 8
SIZE = 11.5  # of small text
SHADES = (1.0, 0.62, 0.3, 0.12)  # of the first part of a bar, the second, ...
LETTERS = "█▓▒░"
WHISKERS = 1.3  # they may go this much further than the longest bar; cut off there, without an end
TEXT_BAR, TEXT_WIDTH = 28, 76  # characters
NOTE_WIDTH = 69  # characters
INK = "var(--ink)"
Amount = Callable[[int], str]


@dataclass(frozen=True)
class _Stretch:
    """A part of a bar, from `start` to `end` in shares of its full length."""

    start: float
    end: float
    fill: str
    letter: str = "█"
    striped: bool = False
    label: str = ""  # written on it where there is room
    says: str = ""
    opacity: float | None = None


@dataclass(frozen=True)
class _Bar:
    """A row of a chart. Places are shares of the bar's full length."""

    label: str
    value: str
    stretches: Sequence[_Stretch]
    says: str = ""  # for the pointer
    note: str = ""  # after the label, quiet
    devices: int = 0  # a square for each, in its colour
    dashed: float | None = None
    limit: float | None = None
    spread: tuple[float, float] | None = None  # a whisker


def _drawn(bar: _Bar, y: float, *, begin: float = 0.0, end: float = WIDTH) -> str:
    """A bar from x = `begin` to `end`: its label above it, or beside it if it begins later.

    Its number is at the right, beside a bar that ends before.
    """
    compact = begin > 0
    middle = y + (COMPACT_ROW / 2 if compact else 20 + BAR / 2)
    words = middle if compact else y + 9
    thick = BAR - 7 if compact else BAR
    size, scale = SIZE if compact else 13, end - begin
    label_at = min(bar.devices, MOST_SQUARES) * (SQUARE + 2) + 4 if bar.devices else 0.0
    pieces = [
        rectangle(i * (SQUARE + 2), words - SQUARE / 2, SQUARE, SQUARE, rx=1.5, fill=colour(i),
                  stroke="var(--line)", stroke_width=0.5)
        for i in range(min(bar.devices, MOST_SQUARES))
    ]  # fmt: skip
    pieces += [
        text(label_at, words, bar.label, size=size, class_=None if compact else "strong"),
        text(WIDTH, middle if end < WIDTH else words, bar.value, size=min(size, 12),
             text_anchor="end"),
        rectangle(begin, middle - thick / 2, scale, thick, rx=3, fill="var(--band)",
                  stroke="var(--line)" if end == WIDTH else None),  # a frame that is filled
    ]  # fmt: skip
    if bar.note and not compact:
        x = label_at + width_of(bar.label) + 8
        pieces.append(text(x, words, bar.note, size=SIZE, class_="muted"))
    for part in bar.stretches:
        x, wide = begin + part.start * scale, (part.end - part.start) * scale
        if part.striped:
            drawn = striped_bar(x, x + wide, middle, thick - 2, part.fill)
        else:
            wide = max(wide, 2.0)  # a little must still be seen
            drawn = rectangle(
                x, middle - thick / 2, wide, thick, rx=2.5, fill=part.fill, opacity=part.opacity,
                stroke="var(--line)", stroke_width=0.75,
            )  # fmt: skip
        if part.label and width_of(part.label, size=SIZE) + 6 < wide:
            drawn += text_on(part.fill, x + 6, middle, part.label, size=SIZE, anchor="start")
        pieces.append(tooltip(part.says, drawn) if part.says else drawn)
    for place, width, dashes in ((bar.dashed, 1.75, "3 2"), (bar.limit, 2.5, None)):
        if place is not None:  # across the bar, with a rim so that it is seen on light and dark
            x = min(max(begin + place * scale, width), end - width)
            across = x, middle - thick / 2 - 3, x, middle + thick / 2 + 3
            pieces += [
                line(*across, stroke="var(--paper)", stroke_width=width + 2.5),
                line(*across, stroke=INK, stroke_width=width, stroke_dasharray=dashes),
            ]
    if bar.spread:
        low, high = (begin + place * scale for place in bar.spread)
        style = {"stroke": INK, "stroke_width": 1.5}
        pieces.append(line(low, middle, min(high, end), middle, **style))
        ends = (x for x in (low, high) if x <= end + 0.5)
        pieces += [line(x, middle - 3, x, middle + 3, **style) for x in ends]
    return tooltip(bar.says, *pieces) if bar.says else element("g", *pieces)


def _letters(bar: _Bar, wide: int = TEXT_BAR, *, empty: str = "░", least: int = 0) -> str:
    """The bar in `wide` characters, each stretch of `least` at least."""
    row = [empty] * wide
    for part in bar.stretches:
        first = min(round(part.start * wide), wide - least)
        last = max(round(part.end * wide), first + least)
        row[first:last] = part.letter * (last - first)
    if bar.limit is not None:
        row[min(round(bar.limit * wide), wide - 1)] = "|"
    return "".join(row)


def memory(rows: Iterable[Sequence[Any]], *, title: str = "Memory by device") -> Picture:
    """Draw `(label, used, limit)` or `(label, used, limit, peak)`, in bytes, as one bar each.

    A label that names a device (`cuda:1`, `cuda:1, peak`) gives the bar that device's colour. The
    bar is solid up to `used` and pale from there to `peak`. Where `limit` is None, the largest
    number of the picture is a full bar, and the legend says so.

    Raises ValueError if a number is negative.
    """
    given = [(str(label), used, limit, (*peak, None)[0]) for label, used, limit, *peak in rows]
    for label, *numbers in given:
        if any(number is not None and number < 0 for number in numbers):
            told = [number for number in numbers if number is not None]
            raise ValueError(f"{label}: memory cannot be negative, got {told}")
    largest = max((max(used, peak or 0) for _, used, _, peak in given), default=0)
    name_width = max((len(label) for label, *_ in given), default=0)
    bars, lines = [], []
    for label, used, limit, peak in given:
        full = (largest if limit is None else limit) or 1
        held, most = min(used / full, 1.0), min((peak or 0) / full, 1.0)
        stretches = []
        if most > held:
            stretches.append(_Stretch(0, most, colour_of(label), "▒", opacity=0.4))
        if used:
            stretches.append(_Stretch(0, held, colour_of(label)))
        exact, amount = (
            write(used) + ("" if limit is None else f" of {write(limit)}")
            for write in (exact_bytes, human_bytes)
        )
        at_most = "" if peak is None else ", at most "
        said = f"{label}: {exact}{at_most and at_most + exact_bytes(peak)}"
        bars.append(_Bar(label, amount, stretches, said))
        words = f"{amount}{at_most and at_most + human_bytes(peak)}"
        lines.append(f"  {label:<{name_width}}  {_letters(bars[-1])}  {words}")
    relative = any(limit is None for _, _, limit, _ in given)
    notes = ["full bar: the largest of these" if relative else "full bar: the limit"]
    if any(peak is not None for *_, peak in given):
        notes.append("pale: the most so far")
    return Picture.with_legend(
        title,
        [_drawn(bar, i * ROW) for i, bar in enumerate(bars)],
        size=(WIDTH, len(bars) * ROW + 4),
        says=[f"{bar.says}." for bar in bars],
        lines=lines,
        kinds=["memory"],
        notes=notes,
    )


@dataclass(frozen=True)
class Stack:
    """One bar: `parts` are bytes by name, in order; parts of the same name have the same shade."""

    label: str
    parts: Mapping[str, int]
    note: str = ""  # after the label, quiet
    expected: int | None = None  # bytes: a dashed line

    @property
    def total(self) -> int:
        """Bytes of the whole bar."""
        return sum(self.parts.values())


def stacks(
    bars: Iterable[Stack],
    *,
    limit: int | None = None,
    rank: int | None = None,
    title: str = "Memory by what it is for",
    expected: str = "expected",
    amount: Amount = human_bytes,
) -> Picture:
    """Draw a bar in parts for each stack, in the colour of `rank`, whose memory it is.

    All bars have one scale. `expected` names the dashed lines, `amount` writes bytes.

    Raises ValueError for a negative part, and for more than four names of parts.
    """
    given = list(bars)
    names = list(dict.fromkeys(name for bar in given for name in bar.parts))
    if len(names) > len(SHADES):
        raise ValueError(f"{len(names)} parts ({', '.join(names)}): at most {len(SHADES)} shades")
    for bar in given:
        if any(size < 0 for size in bar.parts.values()):
            raise ValueError(f"{bar.label}: memory cannot be negative, got {dict(bar.parts)}")
    reach = [bar.total for bar in given] + [bar.expected or 0 for bar in given] + [limit or 0]
    full = max(reach, default=0) or 1
    base = HOST if rank is None else colour(rank)
    fills = {name: tint(base, SHADES[i]) for i, name in enumerate(names)}
    letters = dict(zip(names, LETTERS, strict=False))
    body, says, lines = [], [], []
    name_width = max((len(bar.label) for bar in given), default=0)
    for number, bar in enumerate(given):
        ends = [size / full for size in accumulate(bar.parts.values(), initial=0)]
        stretches = [
            _Stretch(start, end, fills[name], letters[name], label=name,
                     says=f"{bar.label}, {name}: {amount(bar.parts[name])}")
            for name, start, end in zip(bar.parts, ends, ends[1:], strict=False)
            if end > start
        ]  # fmt: skip
        hoped = "" if bar.expected is None else f"{expected} {amount(bar.expected)}"
        over = "more than the limit" if limit is not None and bar.total > limit else ""
        said = ", ".join(filter(None, (amount(bar.total), hoped, over)))
        sizes = ", ".join(f"{name} {amount(size)}" for name, size in bar.parts.items())
        says.append(f"{bar.label}: {said} ({sizes}).")
        drawn = _Bar(
            bar.label, amount(bar.total), stretches, note=bar.note,
            dashed=None if bar.expected is None else bar.expected / full,
            limit=None if limit is None else limit / full,
        )  # fmt: skip
        body.append(_drawn(drawn, number * ROW))
        in_letters = _letters(drawn, TEXT_BAR + 8, empty="·")
        words = "; ".join(filter(None, (amount(bar.total), hoped)))
        lines.append(f"  {bar.label:<{name_width}}  {in_letters}  {words}")
    limit_words = "" if limit is None else f"the limit, {amount(limit)}"
    key = [f"{letters[name]} {name}" for name in names] + [f"| {limit_words}"] * bool(limit_words)
    dashed = [f"dashed: {expected}"] if any(bar.expected is not None for bar in given) else []
    return Picture.with_legend(
        title,
        body,
        size=(WIDTH, len(given) * ROW + 6),
        says=says,
        lines=[*lines, f"  {'':<{name_width}}  {'  '.join(key)}"],
        fills=fills,
        notes=[*dashed, *([f"line: {limit_words}"] if limit_words else [])],
    )


@dataclass(frozen=True)
class Duration:
    """One bar of time: solid while a step computes, striped where an all-reduce is under way."""

    label: str
    seconds: float
    value: str = ""  # at the right end; the seconds if it is empty
    note: str = ""  # after the label, quiet
    low: float | None = None  # the spread: a whisker from here
    high: float | None = None  # to here
    communication: float = 0.0  # share of the bar that is striped
    devices: int = 1

    def __str__(self) -> str:
        spread = ""
        if self.low is not None and self.high is not None:
            spread = f", from {human_seconds(self.low)} to {human_seconds(self.high)}"
        note = f" ({self.note})" if self.note else ""
        talk = f", {self.communication:.0%} all-reduce" if self.communication else ""
        return f"{self.label}{note}: {self.value or human_seconds(self.seconds)}{spread}{talk}"


@dataclass(frozen=True)
class BarGroup:
    """Bars with one scale, and a line at the duration that they are compared with."""

    heading: str
    bars: Sequence[Duration]
    note: str = ""
    against: float | None = None  # seconds of the line
    compact: bool = False  # labels beside the bars, without their notes

    def drawn_bars(self) -> list[_Bar]:
        """The bars on the group's scale; one whisker alone does not squeeze them."""
        longest = max([bar.seconds for bar in self.bars] + [self.against or 0.0])
        reach = max((max(bar.seconds, bar.high or 0.0) for bar in self.bars), default=0.0)
        full = min(max(longest, reach), WHISKERS * longest) or 1.0
        drawn = []
        for bar in self.bars:
            end = bar.seconds / full
            solid = end * (1 - bar.communication)
            parts = [_Stretch(0, solid, HOST)]
            if bar.communication:
                parts.append(_Stretch(solid, end, HOST, "▒", striped=True))
            spread = None
            if bar.low is not None and bar.high is not None:
                spread = bar.low / full, bar.high / full
            drawn.append(
                _Bar(bar.label, bar.value or human_seconds(bar.seconds), parts, str(bar),
                     note=bar.note, devices=bar.devices, spread=spread,
                     dashed=self.against / full if self.against else None)
            )  # fmt: skip
        return drawn


def durations(groups: Iterable[BarGroup], *, title: str, line_at: str = "one GPU") -> Picture:
    """Draw groups of bars below each other; `line_at` names what their lines mean.

    Raises ValueError for a negative duration, and for a share of communication above 1.
    """
    given = list(groups)
    every = [bar for group in given for bar in group.bars]
    for bar in every:
        if bar.seconds < 0 or not 0 <= bar.communication <= 1:
            raise ValueError(
                f"{bar.label}: {bar.seconds} s, of which {bar.communication} communication: "
                "give seconds that are not negative, and a share between 0 and 1"
            )
    body, lines, y = [], [], 0.0
    for group in given:
        body.append(text(0, y + 9, group.heading, size=13, class_="strong"))
        notes = wrap(group.note, NOTE_WIDTH)
        for number, row in enumerate(notes):
            body.append(text(0, y + 26 + 15 * number, row, size=SIZE, class_="muted"))
        lines += [f"  {group.heading}", *(f"  {row}" for row in wrap(group.note, TEXT_WIDTH))]
        y += 24 + 15 * len(notes)
        name_width = max((len(bar.label) for bar in group.bars), default=0)
        for drawn in group.drawn_bars():
            begin = COMPACT_LEFT if group.compact else 0.0
            body.append(_drawn(drawn, y, begin=begin, end=BARS))
            y += COMPACT_ROW if group.compact else ROW
            lines.append(
                f"    {drawn.label:<{name_width}}  {_letters(drawn, least=1)}  {drawn.value}"
            )
            if drawn.note and not group.compact:
                lines.append(f"    {'':<{name_width}}  {drawn.note}")
        y += 12
        lines.append("")
    legend_notes = [f"dashed: {line_at}"] if any(group.against for group in given) else []
    if any(bar.low is not None for bar in every):
        legend_notes.append("thin: fastest to slowest round")
    return Picture.with_legend(
        title,
        body,
        size=(WIDTH, y),
        says=[f"{bar}." for bar in every],
        lines=lines,
        kinds=["compute", *(["communication"] if any(b.communication for b in every) else [])],
        notes=legend_notes,
    )


HEIGHT = 200.0
LEFT, TOP, FOOT = 44.0, 20.0, 160.0  # the field of the curves: from LEFT, from TOP to FOOT
INSET = 14.0  # of the first and the last place
NAME_HEIGHT = 15.0  # names keep this distance
DASHES = (None, "7 4", "2 3", "9 3 2 3")
TRIANGLE = ((0, -5), (4.6, 3.4), (-4.6, 3.4))
DIAMOND = ((0, -5), (5, 0), (0, 5), (-5, 0))

Points = Mapping[float, Sequence[float]]  # values at each place


def curves(
    series: Mapping[str, Points], *, title: str, along: str, figure: str, digits: int = 3
) -> Picture:
    """Draw `{name: {place: [values]}}`: a mark at the mean, a thin line from smallest to largest.

    Places are at equal distances in rising order, however far apart they are. `along` names them,
    `figure` the values, of which `digits` decimals are written. Lines differ by their dashes and
    marks, not by colour: colours belong to GPUs and ranks. Raises ValueError if a curve has no
    place, or a place no value.
    """
    if not series or not all(points and all(points.values()) for points in series.values()):
        raise ValueError(f"every curve needs a value at each of its places, got {dict(series)}")
    values = [value for points in series.values() for some in points.values() for value in some]
    places = sorted({place for points in series.values() for place in points})
    ticks = _ticks(min(values), max(values))
    right = WIDTH - max(width_of(name, size=SIZE) for name in series) - 12

    def x(place: float) -> float:
        gap = (right - LEFT - 2 * INSET) / max(1, len(places) - 1)
        return LEFT + INSET + places.index(place) * gap

    def y(value: float) -> float:
        return TOP + (ticks[-1] - value) / (ticks[-1] - ticks[0]) * (FOOT - TOP)

    quiet = partial(text, size=SIZE, class_="muted")
    body = [quiet(0, 2, figure)]
    decimals = max(0, -floor(log10(ticks[1] - ticks[0]) + 1e-9))
    for tick in ticks:
        body.append(line(LEFT, y(tick), right, y(tick), stroke="var(--edge)"))
        body.append(quiet(LEFT - 6, y(tick), f"{tick:.{decimals}f}", text_anchor="end"))
    body += [text(x(p), FOOT + 14, f"{p:g}", size=SIZE, text_anchor="middle") for p in places]
    body.append(quiet((LEFT + right) / 2, FOOT + 32, along, text_anchor="middle"))
    means = {  # in rising order of the places
        name: {place: fmean(points[place]) for place in sorted(points)}
        for name, points in series.items()
    }
    pen = {"stroke": INK, "stroke_width": 1.6}
    heights = _apart([y(list(mean.values())[-1]) for mean in means.values()])
    for number, (name, mean) in enumerate(means.items()):
        path = " ".join(f"{x(place):.1f},{y(value):.1f}" for place, value in mean.items())
        dashes = DASHES[number % len(DASHES)]
        body.append(element("polyline", points=path, stroke_dasharray=dashes, fill="none", **pen))
        look = {"fill": INK if number == 0 else "var(--paper)", **pen}
        for place, value in mean.items():
            at, height, spread = x(place), y(value), series[name][place]
            if number % 4 == 0:
                mark = element("circle", cx=at, cy=height, r=4, **look)
            elif number % 4 == 1:
                mark = element("rect", x=at - 3.6, y=height - 3.6, width=7.2, height=7.2, **look)
            else:
                corners = TRIANGLE if number % 4 == 2 else DIAMOND
                points = " ".join(f"{at + a:g},{height + b:g}" for a, b in corners)
                mark = element("polygon", points=points, **look)
            whisker = line(at, y(min(spread)), at, y(max(spread)), stroke=INK)
            body.append(tooltip(f"{name}: {value:.{digits}f} at {place:g}", whisker, mark))
        body.append(text(right + 8, heights[number], name, size=SIZE))
    return Picture(
        title,
        " ".join(
            f"{name}: {', '.join(f'{m:.{digits}f} at {along} {p:g}' for p, m in mean.items())}."
            for name, mean in means.items()
        ),
        WIDTH,
        HEIGHT,
        "".join(body),
        tuple(_table(means, places, f"{along}, {figure}", digits)),
    )


def _ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers from at most `low` to at least `high`: about `count` steps."""
    if high == low:
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / count
    power = 10.0 ** floor(log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _apart(heights: Sequence[float]) -> list[float]:
    """The heights, moved down where two names would overlap."""
    placed, free = list(heights), float("-inf")
    for number in sorted(range(len(heights)), key=lambda number: heights[number]):
        placed[number] = max(heights[number], free)
        free = placed[number] + NAME_HEIGHT
    return placed


def _table(
    means: Mapping[str, Mapping[float, float]], places: Sequence[float], corner: str, digits: int
) -> Iterator[str]:
    wide = max(map(len, (corner, *means)))
    yield f"{corner:{wide}}" + "".join(f"{place:>9g}" for place in places)
    for name, points in means.items():
        cells = (f"{points[p]:>9.{digits}f}" if p in points else " " * 9 for p in places)
        yield f"{name:{wide}}" + "".join(cells)
