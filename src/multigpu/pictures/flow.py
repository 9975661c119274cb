"""Who sends how many bytes to whom: `traffic` for one look, `steps` for one movement after another.

Every device is a column. A copy is a striped arrow from the sender's column to the receiver's, in
the sender's colour, the thicker the more bytes. Work is a solid block in the worker's column.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from multigpu.pictures.legend import legend
from multigpu.pictures.movements import CopyLike, Link, Step, columns, links
from multigpu.pictures.palette import colour_of
from multigpu.pictures.picture import Picture
from multigpu.pictures.svg import arrow, chip, line, rectangle, text, tooltip, width_of
from multigpu.pictures.units import human_bytes

COLUMN = 88.0
CHIP = 70.0
CHIP_ROW = 34.0
HEADING = 24.0
LANE = 32.0  # one arrow: its label above, the arrow below
THICKEST, THINNEST = 11.0, 3.0


def traffic(
    copies: Iterable[CopyLike],
    devices: Iterable[Any] | None = None,
    *,
    title: str = "Bytes between devices",
) -> Picture:
    """Draw copies, summed by link. `devices` names the columns (default: those that took part)."""
    return _draw([Step("", copies)], devices, title=title)


def steps(
    movements: Iterable[Step],
    devices: Iterable[Any] | None = None,
    *,
    title: str = "One step, movement by movement",
) -> Picture:
    """Draw movements one below the other, each with its copies (summed by link) and its work."""
    return _draw(list(movements), devices, title=title)


def _draw(movements: Sequence[Step], devices: Iterable[Any] | None, *, title: str) -> Picture:
    linked = [links(movement.copies) for movement in movements]
    names = columns(movements, linked, devices)
    centre = {name: (i + 0.5) * COLUMN for i, name in enumerate(names)}
    width = max(COLUMN * len(names), 3 * COLUMN)
    most = max((link.bytes for group in linked for link in group), default=0)
    y, body = CHIP_ROW if names else 0.0, []
    for movement, group in zip(movements, linked, strict=True):
        piece, height = _movement(movement, group, centre=centre, width=width, most=most)
        body.append(f'<g transform="translate(0 {y:g})">{piece}</g>')
        y += height
    lifelines = [
        line(x, CHIP_ROW / 2, x, y, stroke="var(--line)", stroke_opacity=0.55)
        for x in centre.values()
    ]
    chips = [chip(x, 13, CHIP, name, colour_of(name)) for name, x in centre.items()]
    kinds = [kind for kind, there in (
        ("compute", any(movement.work and not movement.note for movement in movements)),
        ("communication", any(linked)),
    ) if there]  # fmt: skip
    key, key_height = legend(kinds, width, notes=["thicker: more bytes"] if any(linked) else [])
    body.append(f'<g transform="translate(0 {y + 8:g})">{key}</g>')
    return Picture(
        title=title,
        description=" ".join(_sentences(movements, linked)),
        width=width,
        height=y + 8 + key_height,
        body="".join([*lifelines, *chips, *body]),
        lines=tuple(_text_lines(movements, linked)),
    )


def _movement(
    movement: Step,
    group: Sequence[Link],
    *,
    centre: Mapping[str, float],
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
    for lane in _lanes(group, centre):  # first what arrives, then the work on it
        parts += [_labelled_arrow(link, y, centre=centre, most=most) for link in lane]
        y += LANE
    if movement.work:
        for device, label in movement.work.items():
            name = str(device)
            parts.append(chip(centre[name], y + 13, CHIP + 12, label, colour_of(name), size=12))
        y += 28
    return "".join(parts), y + 4


def _lanes(group: Iterable[Link], centre: Mapping[str, float]) -> list[list[Link]]:
    """Put links that do not overlap into one lane, each as high up as it fits."""

    def ends(link: Link) -> list[float]:
        return sorted((centre[link.source], centre[link.target]))

    def apart(one: Link, other: Link) -> bool:
        (left, right), (start, end) = ends(one), ends(other)
        return right <= start or end <= left

    lanes: list[list[Link]] = []
    for link in group:
        free = (lane for lane in lanes if all(apart(link, other) for other in lane))
        lane = next(free, None)
        if lane is None:
            lanes.append([link])
        else:
            lane.append(link)
    return lanes


def _labelled_arrow(link: Link, y: float, *, centre: Mapping[str, float], most: int) -> str:
    start, end = centre[link.source], centre[link.target]
    thickness = max(THINNEST, THICKEST * link.bytes / most) if most else THINNEST
    label = human_bytes(link.bytes)
    middle, half = (start + end) / 2, width_of(label, size=12) / 2 + 2
    return tooltip(
        str(link),
        rectangle(middle - half, y + 1, 2 * half, 14, fill="var(--paper)"),  # hides the column line
        text(middle, y + 8, label, size=12, text_anchor="middle"),
        arrow(start, end, y + 23, thickness, colour_of(link.source)),
    )


def _sentences(movements: Sequence[Step], linked: Sequence[Sequence[Link]]) -> Iterable[str]:
    for movement, group in zip(movements, linked, strict=True):
        said = [str(link) for link in group]
        works = "" if movement.note else " works"
        said += [f"{device}{works}: {label}" for device, label in movement.work.items()]
        sentence = "; ".join(said) or "nothing moves between devices"
        yield f"{movement.name}: {sentence}." if movement.name else f"{sentence}."


def _text_lines(movements: Sequence[Step], linked: Sequence[Sequence[Link]]) -> Iterable[str]:
    for movement, group in zip(movements, linked, strict=True):
        if movement.name:
            yield f"{movement.name}: {movement.note}" if movement.note else movement.name
        for link in group:
            copies = f"  in {link.copies} copies" if link.copies > 1 else ""
            yield f"  {link.source:>7} ──▶ {link.target:<7} {human_bytes(link.bytes):>10}{copies}"
        for device, label in movement.work.items():
            yield f"  {device!s:>7}  {label}"
        if not group and not movement.work:
            yield "  nothing moved between devices"
