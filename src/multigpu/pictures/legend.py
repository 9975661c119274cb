"""The one legend of all pictures: what solid, striped and filled mean."""

from collections.abc import Sequence

from multigpu.pictures.palette import HOST
from multigpu.pictures.svg import line, rectangle, striped_bar, text, width_of

SIZE = 11.5
ROW = 18.0
SWATCH = 26.0


def legend(kinds: Sequence[str], width: float, *, notes: Sequence[str] = ()) -> tuple[str, float]:
    """Draw the entries for `kinds` (`compute`, `communication`, ...), and notes after them.

    Returns the markup, drawn from y = 0 down in a box of `width`, and its height.
    """
    entries = [(_swatch(kind), SWATCH + 6, kind) for kind in kinds]
    entries += [("", 0.0, note) for note in notes]
    parts, x, y = [], 0.0, 0.0
    for swatch, indent, label in entries:
        wide = indent + width_of(label, size=SIZE)
        if x and x + wide > width:
            x, y = 0.0, y + ROW
        words = text(indent, ROW / 2, label, size=SIZE, class_="muted")
        parts.append(f'<g transform="translate({x:g} {y:g})">{swatch}{words}</g>')
        x += wide + 14
    return "".join(parts), y + ROW if entries else 0.0


def _swatch(kind: str) -> str:
    if kind == "communication":
        return striped_bar(1, SWATCH - 1, ROW / 2, 8, HOST)
    if kind == "waiting":
        return line(1, ROW / 2, SWATCH - 1, ROW / 2, stroke=HOST, stroke_width=2.5)
    outline = rectangle(
        0, ROW / 2 - 5, SWATCH, 10, rx=2, fill=HOST if kind == "compute" else "var(--band)",
        stroke="var(--line)",
    )  # fmt: skip
    if kind == "memory":
        outline += rectangle(0.5, ROW / 2 - 4.5, SWATCH * 0.6, 9, rx=1.5, fill=HOST)
    return outline
