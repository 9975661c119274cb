"""Who sends how many bytes to whom: `traffic`, `steps` for one movement after another, `star`.

Every device is a column. A copy is a striped arrow from the sender's column to the receiver's, in
the sender's color, and thicker for more bytes. Work is a solid block in the worker's column.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from multigpu.pictures.palette import color_of, index_of
from multigpu.pictures.picture import (
    Picture,
    arrow,
    chip,
    line,
    rectangle,
    text,
    tooltip,
    translated,
    width_of,
)
from multigpu.pictures.units import exact_bytes, human_bytes

COLUMN, CHIP, CHIP_ROW = 88.0, 70.0, 34.0
HEADING = 24.0
NOTE = 16.0  # a line below a name
LANE = 32.0  # one arrow: its label above, the arrow below
THICKEST, THINNEST = 11.0, 3.0
THICKER = "thicker: more bytes"


@dataclass(frozen=True)
class Step:
    """One movement: its name, its copies, and who worked on what (`{"cuda:0": "8 rows"}`).

    A copy is anything with a `source`, a `target` and its `bytes`. `note` is written beside the
    name in place of the bytes that were copied.
    """

    name: str
    copies: Iterable[Any] = ()
    work: Mapping[Any, str] = field(default_factory=dict)
    note: str = ""


@dataclass
class Link:
    """All the copies of one movement between one sender and one receiver."""

    source: str
    target: str
    bytes: int = 0
    copies: int = 0

    def __str__(self) -> str:
        return f"{self.source} to {self.target}: {exact_bytes(self.bytes)} in {self.counted}"

    @property
    def counted(self) -> str:
        """For example "2 copies"; bytes between ranks move in calls of torch.distributed."""
        one, several = ("copy", "copies") if self.source[:4] != "rank" else ("call", "calls")
        return f"{self.copies} {one if self.copies == 1 else several}"


def links(copies: Iterable[Any]) -> list[Link]:
    """Sum copies by (source, target); copies inside one device are left out. Sorted by name.

    They are sorted because threads make copies in a different order each time.
    """
    found: dict[tuple[str, str], Link] = {}
    for copy in copies:
        ends = str(copy.source), str(copy.target)
        if ends[0] != ends[1]:
            link = found.setdefault(ends, Link(*ends))
            link.bytes += copy.bytes
            link.copies += 1
    return sorted(found.values(), key=lambda link: (_order(link.source), _order(link.target)))


def _order(name: str) -> tuple[int, str]:
    """For sorting: the CPU first, then devices and ranks by number."""
    index = index_of(name)
    return (-1 if index is None else index, name)


def traffic(
    copies: Iterable[Any],
    devices: Iterable[Any] | None = None,
    *,
    title: str = "Bytes between devices",
) -> Picture:
    """Draw copies, summed by link. `devices` names the columns (default: those that took part)."""
    return steps([Step("", copies)], devices, title=title)


def steps(
    movements: Iterable[Step],
    devices: Iterable[Any] | None = None,
    *,
    notes: Mapping[Any, Sequence[str]] | None = None,
    title: str = "One step, movement by movement",
) -> Picture:
    """Draw movements one below the other, each with its copies (summed by link) and its work.

    Columns are the CPU, then `devices` as given, then all others that take part or have `notes`:
    lines below their names.
    """
    said = {str(device): tuple(lines) for device, lines in (notes or {}).items()}
    linked = [(movement, links(movement.copies)) for movement in movements]
    given = [str(device) for device in devices or ()]
    seen = {end for _, group in linked for link in group for end in (link.source, link.target)}
    seen |= {str(device) for movement, _ in linked for device in movement.work}
    seen |= said.keys()
    others = sorted(seen - set(given), key=_order)
    hosts = [name for name in others if index_of(name) is None]
    names = hosts + given + [name for name in others if name not in hosts]
    center = {name: (i + 0.5) * COLUMN for i, name in enumerate(names)}
    width = max(COLUMN * len(names), 3 * COLUMN)
    most = max((link.bytes for _, group in linked for link in group), default=0)
    y, body = CHIP_ROW + NOTE * max(map(len, said.values()), default=0) if names else 0.0, []
    top = y if said else CHIP_ROW / 2  # where lifelines begin
    for name, lines in said.items():
        for i, words in enumerate(lines):
            place = center[name], CHIP_ROW + NOTE * (i + 0.3)
            body.append(text(*place, words, size=11.5, text_anchor="middle"))
    for movement, group in linked:
        piece, height = _movement(movement, group, center=center, width=width, most=most)
        body.append(translated(0, y, piece))
        y += height
    lifelines = [
        line(x, top, x, y, stroke="var(--line)", stroke_opacity=0.55) for x in center.values()
    ]
    chips = [chip(x, 13, CHIP, name, color_of(name)) for name, x in center.items()]
    computes = any(movement.work and not movement.note for movement, _ in linked)
    moves = any(group for _, group in linked)
    return Picture(
        title,
        [*lifelines, *chips, *body],
        size=(width, y + 8),
        says=[
            *(f"{name}: {', '.join(lines)}." for name, lines in said.items()),
            *(_sentence(movement, group) for movement, group in linked),
        ],
        lines=[
            *(f"  {name:>7}  {', '.join(lines)}" for name, lines in said.items()),
            *(row for movement, group in linked for row in _text_lines(movement, group)),
        ],
        kinds=["compute"] * computes + ["communication"] * moves,
        notes=[THICKER] * moves,
    )


def _movement(
    movement: Step,
    group: Sequence[Link],
    *,
    center: Mapping[str, float],
    width: float,
    most: int,
) -> tuple[str, float]:
    """Draw one movement from y = 0 down; return the markup and its height."""
    parts, y = [], 6.0
    if movement.name:
        total = sum(link.bytes for link in group)
        parts += [
            rectangle(0, y, width, HEADING, rx=4, fill="var(--band)"),
            text(8, y + HEADING / 2, movement.name, class_="strong"),
            text(width - 8, y + HEADING / 2,
                 movement.note or (human_bytes(total) if total else "nothing moves"),
                 size=12, class_="muted", text_anchor="end"),
        ]  # fmt: skip
        y += HEADING + 4
    if not group and not movement.work and not movement.name:
        parts.append(text(width / 2, y + 14, "nothing moved between devices", text_anchor="middle"))
        y += 28
    taken: dict[int, list[tuple[float, float]]] = defaultdict(list)  # of each lane
    arrows: dict[int, list[str]] = defaultdict(list)  # of each lane: in the order of reading
    for link in group:
        start, end = center[link.source], center[link.target]
        left, right = sorted((start, end))
        place = next(  # as high up as there is room
            lane
            for lane in count()
            if all(last <= left or right <= first for first, last in taken[lane])
        )
        taken[place].append((left, right))
        thickness = max(THINNEST, THICKEST * link.bytes / (most or 1))
        label, top = human_bytes(link.bytes), y + place * LANE
        middle, half = (start + end) / 2, width_of(label, size=12) / 2 + 2
        arrows[place].append(
            tooltip(
                str(link),  # the rectangle hides the column's line
                rectangle(middle - half, top + 1, 2 * half, 14, fill="var(--paper)"),
                text(middle, top + 8, label, size=12, text_anchor="middle"),
                arrow(start, end, top + 23, thickness, color_of(link.source)),
            )
        )
    parts += [drawn for lane in range(len(taken)) for drawn in arrows[lane]]
    y += len(taken) * LANE
    for device, label in movement.work.items():  # then the work on it
        name = str(device)
        parts.append(chip(center[name], y + 13, CHIP + 12, label, color_of(name), size=12))
    return "".join(parts), y + (32 if movement.work else 4)


def _sentence(movement: Step, group: Sequence[Link]) -> str:
    works = "" if movement.note else " works"
    said = [*map(str, group), *(f"{on}{works}: {what}" for on, what in movement.work.items())]
    name = f"{movement.name}: " if movement.name else ""
    return f"{name}{'; '.join(said) or movement.note or 'nothing moves between devices'}."


def _text_lines(movement: Step, group: Sequence[Link]) -> Iterable[str]:
    if movement.name:
        yield f"{movement.name}: {movement.note}" if movement.note else movement.name
    for link in group:
        several = f"  in {link.counted}" if link.copies > 1 else ""
        yield f"  {link.source:>7} ──▶ {link.target:<7} {human_bytes(link.bytes):>10}{several}"
    for device, label in movement.work.items():
        yield f"  {device!s:>7}  {label}"
    if not group and not movement.work and not movement.note:
        yield "  nothing moved between devices"


def star(
    copies: Iterable[Any],
    center: Any,
    *,
    notes: Mapping[Any, Sequence[str]] | None = None,
    title: str = "Traffic with one center",
) -> Picture:
    """Draw copies to and from `center`, such as a model server; `notes` are lines for each device.

    Copies are summed by link. Raises ValueError if one neither starts nor ends at `center`.
    """
    middle, given = str(center), list(copies)
    linked = links(given)
    for link in linked:
        if middle not in (link.source, link.target):
            raise ValueError(f"{link} does not pass {middle}, the center of this picture")
    total = exact_bytes(sum(link.bytes for link in linked))
    movements = [
        Step(f"to {middle}", [copy for copy in given if str(copy.target) == middle]),
        Step(f"from {middle}", [copy for copy in given if str(copy.source) == middle]),
        Step(f"through the link of {middle}", note=total),
    ]
    return steps(movements, notes=notes, title=title)
