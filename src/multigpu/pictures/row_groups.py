"""Which rank reads which rows of a file: a strip for each plan, cut into row groups."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

from multigpu.pictures.legend import legend
from multigpu.pictures.palette import colour, ink_on
from multigpu.pictures.picture import Picture
from multigpu.pictures.svg import rectangle, text, tooltip, width_of

WIDTH = 420.0
STRIP, ROW = 24.0, 68.0
SMALL = 11.0  # font size
GAP = 4.0  # between row groups


class Rows(Protocol):
    """Rows `start` to `stop` of one row group."""

    @property
    def group(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...


Plan = Sequence[Sequence[Rows]]
"""What each rank reads, rank by rank."""


def row_groups(
    sizes: Sequence[int], plans: Mapping[str, Plan], *, title: str = "Who reads which row group"
) -> Picture:
    """Draw a file whose row groups have `sizes` rows, once for each plan, under the plan's name.

    A row group is as wide as it has rows. It has the colour of the rank that reads it; where
    several ranks read parts of it, each part has its own. What nobody reads stays empty.

    Raises ValueError for a plan that names rows which are not in the file.
    """
    starts = [0, *accumulate(sizes)]
    for name, plan in plans.items():
        for rank, pieces in enumerate(plan):
            for piece in pieces:
                if not (piece.group < len(sizes) and 0 <= piece.start <= piece.stop):
                    raise ValueError(f"{name}, rank {rank}: there is no {piece} in sizes {sizes}")
                if piece.stop > sizes[piece.group]:
                    raise ValueError(f"{name}, rank {rank}: {piece} ends behind its row group")
    body = [
        _strip(name, plan, y=i * ROW, sizes=sizes, starts=starts)
        for i, (name, plan) in enumerate(plans.items())
    ]
    bottom = len(plans) * ROW
    notes = ["colour and number: the rank that reads it", "a gap: the next row group"]
    key, key_height = legend([], WIDTH, notes=notes)
    lines = [line for name, plan in plans.items() for line in _text_lines(name, plan)]
    return Picture(
        title=title,
        description=" ".join(f"{line.strip()}." for line in lines),
        width=WIDTH,
        height=bottom + key_height,
        body="".join(body) + f'<g transform="translate(0 {bottom:g})">{key}</g>',
        lines=tuple(lines),
    )


def _strip(name: str, plan: Plan, *, y: float, sizes: Sequence[int], starts: Sequence[int]) -> str:
    scale = WIDTH / max(starts[-1], 1)
    top = y + 18
    parts = [text(0, y + 8, name, class_="strong")]
    for start, size in zip(starts, sizes, strict=False):  # starts has the end, too
        wide = max(size * scale - GAP, 1)
        parts.append(rectangle(start * scale, top, wide, STRIP, rx=2, fill="var(--band)"))
    for rank, pieces in enumerate(plan):
        for piece in pieces:
            first, last = (starts[piece.group] + row for row in (piece.start, piece.stop))
            gap = GAP if piece.stop == sizes[piece.group] else 0.5
            parts.append(_piece(piece, rank, first * scale, last * scale - gap, top))
    loads = "rows per rank: " + " · ".join(f"{count:,}" for count in _loads(plan))
    parts.append(text(0, top + STRIP + 11, loads, size=SMALL, class_="muted"))
    return "".join(parts)


def _piece(piece: Rows, rank: int, left: float, right: float, top: float) -> str:
    fill, wide = colour(rank), max(right - left, 1.0)
    said = f"rank {rank}: rows {piece.start:,} to {piece.stop:,} of row group {piece.group}"
    parts = [rectangle(left, top, wide, STRIP, rx=2, fill=fill, stroke="var(--line)")]
    if wide > width_of(str(rank), size=SMALL):
        ink = f"fill:{ink_on(fill)}"
        middle = left + wide / 2, top + STRIP / 2
        parts.append(text(*middle, str(rank), size=SMALL, text_anchor="middle", style=ink))
    return tooltip(said, *parts)


def _loads(plan: Plan) -> list[int]:
    return [sum(piece.stop - piece.start for piece in pieces) for pieces in plan]


def _text_lines(name: str, plan: Plan) -> Iterator[str]:
    yield f"  {name}"
    for rank, (pieces, rows) in enumerate(zip(plan, _loads(plan), strict=True)):
        groups = ", ".join(str(piece.group) for piece in pieces)
        read = f"row groups {groups}" if pieces else "nothing"
        yield f"    rank {rank} reads {read}: {rows:,} rows"
