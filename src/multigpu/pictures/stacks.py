"""Memory by what it is for: a bar in parts for each way of training, against a limit.

All bars have one scale. A dashed line on a bar is what was expected there; a solid line on all of
them is the limit. Bars of one rank's memory have its colour, those of a formula are grey.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from multigpu.pictures.palette import HOST, colour, ink_on, tint
from multigpu.pictures.picture import Picture
from multigpu.pictures.svg import element, line, rectangle, text, tooltip, width_of
from multigpu.pictures.units import human_bytes

WIDTH = 420.0
ROW, BAR = 44.0, 17.0
SIZE = 11.5
SHADES = (1.0, 0.62, 0.3, 0.12)  # of the first part, the second, ...
LETTERS = "█▓▒░"
TEXT_BAR = 36  # characters
Amount = Callable[[int], str]


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
    """Draw one bar for each stack, in the colour of `rank`, whose memory it is.

    `expected` names the dashed lines, `amount` writes bytes.

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
    body = [_bar(bar, i * ROW, fills, full=full, amount=amount) for i, bar in enumerate(given)]
    bottom = len(given) * ROW + 6
    if limit is not None:
        x = WIDTH * limit / full
        body += [_mark(x, i * ROW + 20, width=2.5) for i in range(len(given))]
    notes = [_Entry(name, fill) for name, fill in fills.items()]
    if any(bar.expected is not None for bar in given):
        notes.append(_Entry(f"dashed: {expected}"))
    if limit is not None:
        notes.append(_Entry(f"line: the limit, {amount(limit)}"))
    key, key_height = _key(notes)
    said = [_said(bar, limit=limit, expected=expected, amount=amount) for bar in given]
    return Picture(
        title=title,
        description=" ".join(f"{each}." for each in said) or "No bars.",
        width=WIDTH,
        height=bottom + key_height,
        body="".join(body) + f'<g transform="translate(0 {bottom:g})">{key}</g>',
        lines=tuple(_text_lines(given, names, full, limit, expected=expected, amount=amount)),
    )


def _bar(bar: Stack, y: float, fills: Mapping[str, str], *, full: int, amount: Amount) -> str:
    top, x = y + 20, 0.0
    pieces = [
        text(0, y + 9, bar.label, class_="strong"),
        text(WIDTH, y + 9, amount(bar.total), size=12, text_anchor="end"),
        rectangle(0, top, WIDTH, BAR, rx=3, fill="var(--band)"),
    ]
    if bar.note:
        place = width_of(bar.label) + 14
        pieces.append(text(place, y + 9, bar.note, size=SIZE, class_="muted"))
    for name, size in bar.parts.items():
        wide = WIDTH * size / full
        if not size:
            continue
        fill = fills[name]
        block = rectangle(x, top, wide, BAR, fill=fill, stroke="var(--line)", stroke_width=0.75)
        said = f"{bar.label}, {name}: {amount(size)}"
        if width_of(name, size=SIZE) + 6 < wide:
            style = f"fill:{ink_on(fill)}"
            block += text(x + 6, top + BAR / 2, name, size=SIZE, style=style)
        pieces.append(tooltip(said, block))
        x += wide
    if bar.expected is not None:
        at = WIDTH * bar.expected / full
        pieces.append(_mark(at, top, width=1.75, dashes="3 2"))
    return element("g", *pieces)


def _mark(x: float, top: float, *, width: float, dashes: str | None = None) -> str:
    """A line across a bar, with a rim so that it is seen on light and dark."""
    x = min(max(x, width), WIDTH - width)
    first, last = top - 3, top + BAR + 3
    rim = line(x, first, x, last, stroke="var(--paper)", stroke_width=width + 2.5)
    style = {"stroke": "var(--ink)", "stroke_width": width, "stroke_dasharray": dashes}
    return rim + line(x, first, x, last, **style)


@dataclass(frozen=True)
class _Entry:
    """An entry of the legend."""

    label: str
    fill: str = ""


def _key(entries: Sequence[_Entry]) -> tuple[str, float]:
    parts, x, y = [], 0.0, 0.0
    for entry in entries:
        indent = 32.0 if entry.fill else 0.0
        wide = indent + width_of(entry.label, size=SIZE)
        if x and x + wide > WIDTH:
            x, y = 0.0, y + 18
        if entry.fill:
            parts.append(rectangle(x, y + 4, 26, 10, rx=2, fill=entry.fill, stroke="var(--line)"))
        parts.append(text(x + indent, y + 9, entry.label, size=SIZE, class_="muted"))
        x += wide + 14
    return "".join(parts), y + 18 if entries else 0.0


def _said(bar: Stack, *, limit: int | None, expected: str, amount: Amount) -> str:
    parts = ", ".join(f"{name} {amount(size)}" for name, size in bar.parts.items())
    hoped = "" if bar.expected is None else f", {expected} {amount(bar.expected)}"
    over = ", more than the limit" if limit is not None and bar.total > limit else ""
    return f"{bar.label}: {amount(bar.total)}{hoped}{over} ({parts})"


def _text_lines(
    bars: Sequence[Stack],
    names: Sequence[str],
    full: int,
    limit: int | None,
    *,
    expected: str,
    amount: Amount,
) -> Iterable[str]:
    wide = max((len(bar.label) for bar in bars), default=0)
    for bar in bars:
        row, x = ["·"] * TEXT_BAR, 0.0
        for name, size in bar.parts.items():
            first, last = round(x / full * TEXT_BAR), round((x + size) / full * TEXT_BAR)
            row[first:last] = LETTERS[names.index(name)] * (last - first)
            x += size
        if limit is not None:
            row[min(round(limit / full * TEXT_BAR), TEXT_BAR - 1)] = "|"
        hoped = "" if bar.expected is None else f"; {expected} {amount(bar.expected)}"
        yield f"  {bar.label:<{wide}}  {''.join(row)}  {amount(bar.total)}{hoped}"
    key = [f"{LETTERS[i]} {name}" for i, name in enumerate(names)]
    if limit is not None:
        key.append(f"| the limit, {amount(limit)}")
    yield f"  {'':<{wide}}  {'  '.join(key)}"
