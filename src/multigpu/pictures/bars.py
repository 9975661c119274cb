"""Bars: memory filled against its limit, memory in parts, times, and the row groups of a file.

Every bar is drawn by `_bar`: a label, a number, and parts on a common scale. What belongs to a GPU
or rank has its color, the rest is gray. Solid is compute, striped is communication; a dashed line
is the baseline, a solid one the limit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from textwrap import wrap
from typing import Any, NamedTuple

from multigpu.pictures.palette import HOST, color, color_of, tint
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
BARS = 299.0  # where bars of time end, and their numbers begin
SQUARE, MOST_SQUARES = 8.0, 8
SIZE = 11.5  # of small text
SHADES = (1.0, 0.62, 0.3, 0.12)  # of the first part of a bar, the second, ...
LETTERS = "█▓▒░"
WHISKERS = 1.3  # they may go this much further than the longest bar; cut off there, without an end
TEXT_BAR, TEXT_WIDTH, NOTE_WIDTH = 28, 76, 69  # characters


class BarPart(NamedTuple):
    """A part of a bar, from `start` to `end` in shares of its full length."""

    start: float
    end: float
    fill: str
    letter: str = "█"
    striped: bool = False
    label: str = ""  # written on it where there is room
    says: str = ""
    opacity: float | None = None


def _bar(
    y: float,
    label: str,
    value: str,
    parts: Sequence[BarPart],
    *,
    note: str = "",  # after the label, quiet
    devices: int = 0,  # a square for each, in its color
    dashed: float | None = None,
    limit: float | None = None,
    spread: tuple[float, float] | None = None,  # a whisker
    begin: float = 0.0,
    end: float = WIDTH,
) -> str:
    """A bar from x = `begin` to `end`: its label above it, or beside it if it begins later.

    Its number is at the right, beside a bar that ends before. Places are shares of its full length.
    """
    compact = begin > 0
    middle = y + (COMPACT_ROW / 2 if compact else 20 + BAR / 2)
    words = middle if compact else y + 9
    thick = BAR - 7 if compact else BAR
    size, scale = SIZE if compact else 13, end - begin
    squares = min(devices, MOST_SQUARES)
    label_at = squares * (SQUARE + 2) + 4 if squares else 0.0
    pieces = [
        rectangle(i * (SQUARE + 2), words - SQUARE / 2, SQUARE, SQUARE, rx=1.5, fill=color(i),
                  stroke="var(--line)", stroke_width=0.5)
        for i in range(squares)
    ]  # fmt: skip
    pieces += [
        text(label_at, words, label, size=size, class_=None if compact else "strong"),
        text(WIDTH, middle if end < WIDTH else words, value, size=min(size, 12), text_anchor="end"),
        rectangle(begin, middle - thick / 2, scale, thick, rx=3, fill="var(--band)",
                  stroke="var(--line)" if end == WIDTH else None),  # a frame that is filled
    ]  # fmt: skip
    if note:
        at = label_at + width_of(label) + 8
        pieces.append(text(at, words, note, size=SIZE, class_="muted"))
    for part in parts:
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
    for place, width, dashes in ((dashed, 1.75, "3 2"), (limit, 2.5, None)):
        if place is not None:  # across the bar, with a rim so that it is seen on light and dark
            x = min(max(begin + place * scale, width), end - width)
            across = x, middle - thick / 2 - 3, x, middle + thick / 2 + 3
            pieces += [
                line(*across, stroke="var(--paper)", stroke_width=width + 2.5),
                line(*across, stroke="var(--ink)", stroke_width=width, stroke_dasharray=dashes),
            ]
    if spread:
        low, high = (begin + place * scale for place in spread)
        style = {"stroke": "var(--ink)", "stroke_width": 1.5}
        pieces.append(line(low, middle, min(high, end), middle, **style))
        ends = (x for x in (low, high) if x <= end + 0.5)
        pieces += [line(x, middle - 3, x, middle + 3, **style) for x in ends]
    return "".join(pieces)


def _letters(
    parts: Sequence[BarPart], wide: int = TEXT_BAR, empty: str = "░", least: int = 0
) -> str:
    """A bar in `wide` characters, each part of `least` at least."""
    row = [empty] * wide
    for part in parts:
        first = min(round(part.start * wide), wide - least)
        last = max(round(part.end * wide), first + least)
        row[first:last] = part.letter * (last - first)
    return "".join(row)


def memory(rows: Iterable[Sequence[Any]], *, title: str = "Memory by device") -> Picture:
    """Draw `(label, used, limit)` or `(label, used, limit, peak)`, in bytes, as one bar each.

    A label that names a device (`cuda:1`, `cuda:1, peak`) gives the bar that device's color. The
    bar is solid up to `used` and pale from there to `peak`. Where `limit` is None, the largest
    number of the picture is a full bar, and the legend says so.
    """
    given = [(str(label), used, limit, (*peak, None)[0]) for label, used, limit, *peak in rows]
    largest = max((max(used, peak or 0) for _, used, _, peak in given), default=0)
    names = max((len(label) for label, *_ in given), default=0)
    body, says, lines = [], [], []
    for number, (label, used, limit, peak) in enumerate(given):
        full = (largest if limit is None else limit) or 1
        held, most = min(used / full, 1.0), min((peak or 0) / full, 1.0)
        parts = [BarPart(0, held, color_of(label))] if used else []
        if most > held:
            parts.insert(0, BarPart(0, most, color_of(label), "▒", opacity=0.4))
        exact, amount = (
            write(used) + ("" if limit is None else f" of {write(limit)}")
            for write in (exact_bytes, human_bytes)
        )
        words = amount
        if peak is not None:
            exact += f", at most {exact_bytes(peak)}"
            words += f", at most {human_bytes(peak)}"
        body.append(tooltip(f"{label}: {exact}", _bar(number * ROW, label, amount, parts)))
        says.append(f"{label}: {exact}.")
        lines.append(f"  {label:<{names}}  {_letters(parts)}  {words}")
    relative = any(limit is None for _, _, limit, _ in given)
    notes = ["full bar: the largest of these" if relative else "full bar: the limit"]
    if any(peak is not None for *_, peak in given):
        notes.append("pale: the most so far")
    return Picture(
        title,
        body,
        size=(WIDTH, len(given) * ROW + 4),
        says=says,
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
    amount: Callable[[int], str] = human_bytes,
) -> Picture:
    """Draw a bar in parts for each stack, in the color of `rank`, whose memory it is.

    All bars have one scale, and at most four names of parts. `expected` names the dashed lines,
    `amount` writes bytes.
    """
    given = list(bars)
    kinds = list(dict.fromkeys(name for bar in given for name in bar.parts))
    full = max([limit or 0, *(max(bar.total, bar.expected or 0) for bar in given)]) or 1
    base = HOST if rank is None else color(rank)
    fills = {name: tint(base, shade) for name, shade in zip(kinds, SHADES, strict=False)}
    letters = dict(zip(kinds, LETTERS, strict=False))
    names = max((len(bar.label) for bar in given), default=0)
    body, says, lines = [], [], []
    for number, bar in enumerate(given):
        ends = [size / full for size in accumulate(bar.parts.values(), initial=0)]
        parts = [
            BarPart(start, end, fills[name], letters[name], label=name,
                 says=f"{bar.label}, {name}: {amount(bar.parts[name])}")
            for name, (start, end) in zip(bar.parts, pairwise(ends), strict=True)
            if end > start
        ]  # fmt: skip
        dashed = None if bar.expected is None else bar.expected / full
        line_at = None if limit is None else limit / full
        value = amount(bar.total)
        drawn = _bar(number * ROW, bar.label, value, parts, note=bar.note, dashed=dashed,
                     limit=line_at)  # fmt: skip
        body.append(element("g", drawn))
        said = [value, *([] if bar.expected is None else [f"{expected} {amount(bar.expected)}"])]
        row = list(_letters(parts, TEXT_BAR + 8, "·"))
        if line_at is not None:
            row[min(round(line_at * len(row)), len(row) - 1)] = "|"
        lines.append(f"  {bar.label:<{names}}  {''.join(row)}  {'; '.join(said)}")
        if limit is not None and bar.total > limit:
            said.append("more than the limit")
        sizes = ", ".join(f"{name} {amount(size)}" for name, size in bar.parts.items())
        says.append(f"{bar.label}: {', '.join(said)} ({sizes}).")
    key = [f"{letter} {name}" for name, letter in letters.items()]
    notes = [f"dashed: {expected}"] if any(bar.expected is not None for bar in given) else []
    if limit is not None:
        key.append(f"| the limit, {amount(limit)}")
        notes.append(f"line: the limit, {amount(limit)}")
    return Picture(
        title,
        body,
        size=(WIDTH, len(given) * ROW + 6),
        says=says,
        lines=[*lines, f"  {'':<{names}}  {'  '.join(key)}"],
        fills=fills,
        notes=notes,
    )


@dataclass(frozen=True, kw_only=True)
class Duration:
    """One bar of time: solid while a step computes, striped where an all-reduce is under way."""

    label: str
    seconds: float
    value: str  # at the right end
    note: str = ""  # after the label, quiet
    spread: tuple[float, float] | None = None  # seconds: a whisker from the fastest to the slowest
    communication: float = 0.0  # share of the bar that is striped
    devices: int = 1

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        low, high = map(human_seconds, self.spread or (0, 0))
        spread = f", from {low} to {high}" if self.spread else ""
        talk = f", {self.communication:.0%} all-reduce" if self.communication else ""
        return f"{self.label}{note}: {self.value}{spread}{talk}"


@dataclass(frozen=True)
class BarGroup:
    """Bars with one scale, and a line at the duration of the baseline."""

    heading: str
    bars: Sequence[Duration]
    note: str = ""
    against: float | None = None  # seconds of the line
    compact: bool = False  # labels beside the bars


def durations(groups: Iterable[BarGroup], *, title: str, line_at: str = "one GPU") -> Picture:
    """Draw groups of bars below each other; `line_at` names what their lines mean."""
    given = list(groups)
    every = [bar for group in given for bar in group.bars]
    body, lines, y = [], [], 0.0
    for group in given:
        body.append(text(0, y + 9, group.heading, size=13, class_="strong"))
        notes = wrap(group.note, NOTE_WIDTH)
        for number, row in enumerate(notes):
            body.append(text(0, y + 26 + 15 * number, row, size=SIZE, class_="muted"))
        lines += [f"  {group.heading}", *(f"  {row}" for row in wrap(group.note, TEXT_WIDTH))]
        y += 24 + 15 * len(notes)
        longest = max([group.against or 0.0, *(bar.seconds for bar in group.bars)])
        reach = max([longest, *(bar.spread[1] for bar in group.bars if bar.spread)])
        full = min(reach, WHISKERS * longest) or 1.0  # one whisker alone does not squeeze the bars
        names = max((len(bar.label) for bar in group.bars), default=0)
        for bar in group.bars:
            end = bar.seconds / full
            solid = end * (1 - bar.communication)
            parts = [BarPart(0, solid, HOST)]
            if bar.communication:
                parts.append(BarPart(solid, end, HOST, "▒", striped=True))
            drawn = _bar(
                y, bar.label, bar.value, parts, note=bar.note, devices=bar.devices,
                dashed=group.against / full if group.against else None,
                spread=(bar.spread[0] / full, bar.spread[1] / full) if bar.spread else None,
                begin=COMPACT_LEFT if group.compact else 0.0, end=BARS,
            )  # fmt: skip
            body.append(tooltip(str(bar), drawn))
            y += COMPACT_ROW if group.compact else ROW
            lines.append(f"    {bar.label:<{names}}  {_letters(parts, least=1)}  {bar.value}")
            if bar.note:
                lines.append(f"    {'':<{names}}  {bar.note}")
        y += 12
        lines.append("")
    notes = [f"dashed: {line_at}"] if any(group.against for group in given) else []
    if any(bar.spread for bar in every):
        notes.append("thin: fastest to slowest round")
    return Picture(
        title,
        body,
        size=(WIDTH, y),
        says=[f"{bar}." for bar in every],
        lines=lines,
        kinds=["compute", *(["communication"] if any(b.communication for b in every) else [])],
        notes=notes,
    )


def row_groups(
    sizes: Sequence[int],
    plans: Mapping[str, Sequence[Sequence[Any]]],
    *,
    title: str = "Who reads which row group",
) -> Picture:
    """Draw a file whose row groups have `sizes` rows as a bar for each plan, named by the plan.

    A plan says rank by rank which ranges of rows it reads: `group`, `start` and `stop` of each.
    The rows of a row group that a rank reads are a part of the bar in its color. Rows that no rank
    reads stay empty.
    """
    *starts, total = accumulate(sizes, initial=0)
    gap = 4.0 / WIDTH  # between row groups
    body, lines = [], []
    for number, (name, plan) in enumerate(plans.items()):
        parts = []
        lines.append(f"  {name}")
        loads = [sum(piece.stop - piece.start for piece in pieces) for pieces in plan]
        for rank, pieces in enumerate(plan):
            for piece in pieces:
                left, right = (
                    (starts[piece.group] + row) / total for row in (piece.start, piece.stop)
                )
                rows = f"rows {piece.start:,} to {piece.stop:,} of row group {piece.group}"
                right -= gap if piece.stop == sizes[piece.group] else 0
                says = f"rank {rank}: {rows}"
                parts.append(BarPart(left, right, color(rank), label=str(rank), says=says))
            groups = ", ".join(str(piece.group) for piece in pieces)
            read = f"row groups {groups}" if pieces else "nothing"
            lines.append(f"    rank {rank} reads {read}: {loads[rank]:,} rows")
        y = number * (ROW + 18)
        words = "rows per rank: " + " · ".join(f"{count:,}" for count in loads)
        body.append(_bar(y, name, f"{sum(loads):,} rows", parts))
        body.append(text(0, y + ROW + 4, words, size=SIZE, class_="muted"))
    return Picture(
        title,
        body,
        size=(WIDTH, len(plans) * (ROW + 18)),
        says=[f"{each.strip()}." for each in lines],
        lines=lines,
        notes=["color and number: the rank that reads it", "a gap: the next row group"],
    )
