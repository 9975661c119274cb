"""Memory: a bar for each device, filled against its limit."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from multigpu.pictures.legend import legend
from multigpu.pictures.palette import colour_of
from multigpu.pictures.picture import Picture
from multigpu.pictures.svg import rectangle, text, tooltip
from multigpu.pictures.units import exact_bytes, human_bytes

WIDTH = 420.0
ROW = 42.0
BAR = 15.0
TEXT_BAR = 28  # characters


class _Row(NamedTuple):
    label: str
    used: int
    limit: int | None  # as given
    peak: int | None  # as given
    full: int  # what a full bar means

    def share(self, count: int) -> float:
        return min(count / self.full, 1.0) if self.full else 0.0

    @property
    def amount(self) -> str:
        used = human_bytes(self.used)
        return used if self.limit is None else f"{used} of {human_bytes(self.limit)}"

    def __str__(self) -> str:
        limit = "" if self.limit is None else f" of {exact_bytes(self.limit)}"
        peak = "" if self.peak is None else f", at most {exact_bytes(self.peak)}"
        return f"{self.label}: {exact_bytes(self.used)}{limit}{peak}"


def memory(rows: Iterable[Sequence[Any]], *, title: str = "Memory by device") -> Picture:
    """Draw `(label, used, limit)` or `(label, used, limit, peak)`, in bytes, as one bar each.

    A label that names a device (`cuda:1`, `cuda:1, peak`) gives the bar that device's colour. The
    bar is solid up to `used` and pale from there to `peak`. Where `limit` is None, the largest
    number of the picture stands for a full bar, and the legend says so.

    Raises ValueError if a number is negative.
    """
    bars = _rows(rows)
    relative = any(row.limit is None for row in bars)
    notes = ["full bar: the largest of these" if relative else "full bar: the limit"]
    if any(row.peak is not None for row in bars):
        notes.append("pale: the most so far")
    key, key_height = legend(["memory"], WIDTH, notes=notes)
    bottom = len(bars) * ROW + 4
    body = [_bar(row, i * ROW) for i, row in enumerate(bars)]
    return Picture(
        title=title,
        description=" ".join(f"{row}." for row in bars) or "No devices.",
        width=WIDTH,
        height=bottom + key_height,
        body="".join(body) + f'<g transform="translate(0 {bottom:g})">{key}</g>',
        lines=tuple(_text_lines(bars)),
    )


def _rows(rows: Iterable[Sequence[Any]]) -> list[_Row]:
    given = [(str(label), used, limit, *peak) for label, used, limit, *peak in rows]
    for label, *numbers in given:
        if any(number is not None and number < 0 for number in numbers):
            raise ValueError(f"{label}: memory cannot be negative, got {numbers}")
    largest = max((max(used, *peak) if peak else used for _, used, _, *peak in given), default=0)
    return [
        _Row(label, used, limit, peak[0] if peak else None, largest if limit is None else limit)
        for label, used, limit, *peak in given
    ]


def _bar(row: _Row, y: float) -> str:
    top, colour = y + 18, colour_of(row.label)
    pieces = [
        text(0, y + 8, row.label, class_="strong"),
        text(WIDTH, y + 8, row.amount, size=12, text_anchor="end"),
        rectangle(0, top, WIDTH, BAR, rx=3, fill="var(--band)", stroke="var(--line)"),
    ]
    for count, opacity in ((row.peak or 0, 0.4), (row.used, None)):
        if count:  # a little must still be seen
            wide = max(row.share(count) * WIDTH, 2.0)
            pieces.append(
                rectangle(0.5, top + 0.5, wide - 0.5, BAR - 1, rx=2.5, fill=colour, opacity=opacity)
            )
    return tooltip(str(row), *pieces)


def _text_lines(bars: list[_Row]) -> Iterable[str]:
    wide = max((len(row.label) for row in bars), default=0)
    for row in bars:
        solid = round(row.share(row.used) * TEXT_BAR)
        pale = max(round(row.share(row.peak or 0) * TEXT_BAR) - solid, 0)
        bar = "█" * solid + "▒" * pale + "░" * (TEXT_BAR - solid - pale)
        peak = "" if row.peak is None else f", at most {human_bytes(row.peak)}"
        yield f"  {row.label:<{wide}}  {bar}  {row.amount}{peak}"
