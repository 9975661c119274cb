"""Memory: a bar for each device, filled against its limit."""

from collections.abc import Iterable
from typing import NamedTuple

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
    scale: int  # what a full bar means

    @property
    def share(self) -> float:
        return min(self.used / self.scale, 1.0) if self.scale else 0.0

    @property
    def amount(self) -> str:
        used = human_bytes(self.used)
        return used if self.limit is None else f"{used} of {human_bytes(self.limit)}"

    def __str__(self) -> str:
        limit = "" if self.limit is None else f" of {exact_bytes(self.limit)}"
        return f"{self.label}: {exact_bytes(self.used)}{limit}"


def memory(
    rows: Iterable[tuple[str, int, int | None]], *, title: str = "Memory by device"
) -> Picture:
    """Draw `(label, used, limit)`, in bytes, as one bar each.

    A label that names a device (`cuda:1`, `cuda:1, peak`) gives the bar that device's colour. Where
    `limit` is None, the fullest row of the picture stands for a full bar, and the legend says so.

    Raises ValueError if a number is negative.
    """
    given = [(str(label), used, limit) for label, used, limit in rows]
    for label, used, limit in given:
        if used < 0 or (limit is not None and limit < 0):
            raise ValueError(f"{label}: memory cannot be negative, got used={used}, limit={limit}")
    fullest = max((used for _, used, _ in given), default=0)
    bars = [_Row(*row, scale=fullest if row[2] is None else row[2]) for row in given]
    relative = any(row.limit is None for row in bars)
    note = "full bar: the largest of these" if relative else "full bar: the limit"
    body = [_bar(row, i * ROW) for i, row in enumerate(bars)]
    key, key_height = legend(["memory"], WIDTH, note=note)
    bottom = len(bars) * ROW + 4
    return Picture(
        title=title,
        description=" ".join(f"{row}." for row in bars) or "No devices.",
        width=WIDTH,
        height=bottom + key_height,
        body="".join(body) + f'<g transform="translate(0 {bottom:g})">{key}</g>',
        lines=tuple(_text_lines(bars)),
    )


def _bar(row: _Row, y: float) -> str:
    top = y + 18
    fill = max(row.share * WIDTH, 2.0) if row.used else 0.0  # a little must still be seen
    return tooltip(
        str(row),
        text(0, y + 8, row.label, class_="strong"),
        text(WIDTH, y + 8, row.amount, size=12, text_anchor="end"),
        rectangle(0, top, WIDTH, BAR, rx=3, fill="var(--band)", stroke="var(--line)"),
        rectangle(0.5, top + 0.5, fill, BAR - 1, rx=2.5, fill=colour_of(row.label)),
    )


def _text_lines(bars: list[_Row]) -> Iterable[str]:
    wide = max((len(row.label) for row in bars), default=0)
    for row in bars:
        filled = round(row.share * TEXT_BAR)
        bar = "█" * filled + "░" * (TEXT_BAR - filled)
        yield f"  {row.label:<{wide}}  {bar}  {row.amount}"
