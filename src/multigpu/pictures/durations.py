"""Durations: a bar for each way of doing the same work, in groups, each with its own scale.

A bar is solid where a step computes and striped where an all-reduce is under way. Beside its name
stands one square for each GPU or rank that takes part, in that one's colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap

from multigpu.pictures.legend import legend
from multigpu.pictures.palette import HOST, colour
from multigpu.pictures.picture import Picture
from multigpu.pictures.svg import line, rectangle, striped_bar, text, tooltip, width_of
from multigpu.pictures.units import human_seconds

WIDTH = 420.0
ROW = 42.0
BAR = 15.0
BARS = 312.0  # where bars end, and their numbers begin
COMPACT_ROW, COMPACT_LEFT = 20.0, 150.0
SQUARE = 8.0
MOST_SQUARES = 8
WHISKERS = 1.3  # they may go this much further than the longest bar; cut off there, without an end
TEXT_BAR, TEXT_WIDTH = 28, 76  # characters
SIZE = 11.0  # of small text


@dataclass(frozen=True)
class Duration:
    """One bar."""

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
        return f"{self.label}{note}: {self.shown}{spread}{talk}"

    @property
    def shown(self) -> str:
        """What stands at the right end."""
        return self.value or human_seconds(self.seconds)

    @property
    def reach(self) -> float:
        """How far the bar or its whisker goes."""
        return max(self.seconds, self.high or 0.0)


@dataclass(frozen=True)
class Group:
    """Bars with one scale, and a line at the duration that they are compared with."""

    heading: str
    bars: Sequence[Duration]
    note: str = ""
    against: float | None = None  # seconds of the line
    compact: bool = False  # labels beside the bars, without their notes

    @property
    def full(self) -> float:
        """Seconds of a bar that fills the width; one whisker alone does not squeeze the bars."""
        longest = max([bar.seconds for bar in self.bars] + [self.against or 0.0])
        most = max((bar.reach for bar in self.bars), default=0.0)
        return min(max(longest, most), WHISKERS * longest) or 1.0


def durations(groups: Iterable[Group], *, title: str, line_at: str = "one GPU") -> Picture:
    """Draw groups of bars below each other; `line_at` names what their lines stand for.

    Raises ValueError for a negative duration, and for a share of communication that is none.
    """
    given = list(groups)
    for bar in (bar for group in given for bar in group.bars):
        if bar.seconds < 0 or not 0 <= bar.communication <= 1:
            raise ValueError(
                f"{bar.label}: {bar.seconds} s, of which {bar.communication} communication: "
                "give seconds that are not negative, and a share between 0 and 1"
            )
    body, top = [], 0.0
    for group in given:
        markup, top = _group(group, top)
        body.append(markup)
    key, key_height = _key(given, line_at)
    return Picture(
        title=title,
        description=" ".join(f"{bar}." for group in given for bar in group.bars) or "No bars.",
        width=WIDTH,
        height=top + key_height,
        body="".join(body) + f'<g transform="translate(0 {top:g})">{key}</g>',
        lines=tuple(row for group in given for row in _text_lines(group)),
    )


def _key(groups: list[Group], line_at: str) -> tuple[str, float]:
    bars = [bar for group in groups for bar in group.bars]
    kinds, notes = ["compute"], []
    if any(bar.communication for bar in bars):
        kinds.append("communication")
    if any(group.against for group in groups):
        notes.append(f"dashed: {line_at}")
    if any(bar.low is not None for bar in bars):
        notes.append("thin: fastest to slowest round")
    return legend(kinds, WIDTH, notes=notes)


def _group(group: Group, top: float) -> tuple[str, float]:
    """The markup of a group, and where it ends."""
    parts = [text(0, top + 9, group.heading, size=13, class_="strong")]
    notes = wrap(group.note, int(WIDTH / SIZE / 0.55))
    for number, row in enumerate(notes):
        parts.append(text(0, top + 26 + 15 * number, row, size=SIZE, class_="muted"))
    y = top + 24 + 15 * len(notes)
    begin = COMPACT_LEFT if group.compact else 0.0
    scale = (BARS - begin) / group.full
    for bar in group.bars:
        parts.append(_bar(bar, y, begin=begin, scale=scale, compact=group.compact))
        middle = y + (COMPACT_ROW / 2 if group.compact else ROW - BAR)
        if group.against:
            parts.append(_line(begin + group.against * scale, middle))
        y += COMPACT_ROW if group.compact else ROW
    return "".join(parts), y + 12


def _bar(bar: Duration, y: float, *, begin: float, scale: float, compact: bool) -> str:
    """A bar with its label beside it, or above it with a note."""
    middle = y + (COMPACT_ROW / 2 if compact else ROW - BAR)
    words = y + (COMPACT_ROW / 2 if compact else 9)
    thick = BAR - 5 if compact else BAR
    wide = max(bar.seconds * scale, 2.0)
    talk = bar.communication * wide
    label_at = min(bar.devices, MOST_SQUARES) * (SQUARE + 2) + 4
    pieces = [
        _squares(bar.devices, words),
        text(label_at, words, bar.label, size=SIZE if compact else 13,
             class_=None if compact else "strong"),
        rectangle(begin, middle - thick / 2, BARS - begin, thick, rx=3, fill="var(--band)"),
        rectangle(begin, middle - thick / 2, max(wide - talk, 1.0), thick, rx=3, fill=HOST,
                  stroke="var(--line)"),
        text(WIDTH, middle, bar.shown, size=SIZE if compact else 12, text_anchor="end"),
    ]  # fmt: skip
    if bar.note and not compact:
        x = label_at + width_of(bar.label) + 6
        pieces.append(text(x, words, bar.note, size=SIZE, class_="muted"))
    if talk:
        pieces.append(striped_bar(begin + wide - talk, begin + wide, middle, thick - 2, HOST))
    if bar.low is not None and bar.high is not None:
        pieces.append(_whisker(begin + bar.low * scale, begin + bar.high * scale, middle))
    return tooltip(str(bar), *pieces)


def _line(x: float, middle: float) -> str:
    """The piece of the dashed line beside one bar: it does not cross the words."""
    dashes = {"stroke": "var(--ink)", "stroke_width": 1.5, "stroke_dasharray": "3 2"}
    return line(x, middle - BAR / 2 - 2, x, middle + BAR / 2 + 2, **dashes)


def _squares(devices: int, y: float) -> str:
    """One square per device, in its colour; beyond `MOST_SQUARES` the label's number must do."""
    return "".join(
        rectangle(i * (SQUARE + 2), y - SQUARE / 2, SQUARE, SQUARE, rx=1.5, fill=colour(i),
                  stroke="var(--line)", stroke_width=0.5)
        for i in range(min(devices, MOST_SQUARES))
    )  # fmt: skip


def _whisker(low: float, high: float, y: float) -> str:
    style = {"stroke": "var(--ink)", "stroke_width": 1.5}
    ends = (line(x, y - 3, x, y + 3, **style) for x in (low, high) if x <= BARS + 0.5)
    return line(low, y, min(high, BARS), y, **style) + "".join(ends)


def _text_lines(group: Group) -> Iterable[str]:
    yield f"  {group.heading}"
    yield from (f"  {row}" for row in wrap(group.note, TEXT_WIDTH))
    wide = max((len(bar.label) for bar in group.bars), default=0)
    for bar in group.bars:
        long = max(round(bar.seconds / group.full * TEXT_BAR), 1)
        talk = min(round(bar.communication * long), long)
        drawn = "█" * (long - talk) + "▒" * talk + "░" * (TEXT_BAR - long)
        yield f"    {bar.label:<{wide}}  {drawn}  {bar.shown}"
        if bar.note and not group.compact:
            yield f"    {'':<{wide}}  {bar.note}"
    yield ""
