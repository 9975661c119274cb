"""A centre that everybody talks to, such as a model server: a column for each who talks to it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from multigpu.pictures.legend import legend
from multigpu.pictures.movements import CopyLike, Link, links
from multigpu.pictures.palette import colour_of, ink_on
from multigpu.pictures.picture import Picture
from multigpu.pictures.svg import arrow, element, rectangle, text, tooltip
from multigpu.pictures.units import human_bytes

COLUMN = 96.0
BOX = 84.0
CENTRE_HEIGHT, GAP, LINE = 40.0, 62.0, 17.0
THICKEST, THINNEST = 9.0, 3.0


def star(
    copies: Iterable[CopyLike],
    centre: Any,
    *,
    notes: Mapping[Any, Sequence[str]] | None = None,
    title: str = "Everybody talks to one",
) -> Picture:
    """Draw copies to and from `centre`, summed by link; `notes` are lines for each box.

    Raises ValueError if a copy neither starts nor ends at `centre`.
    """
    middle = str(centre)
    said = {str(name): list(lines) for name, lines in (notes or {}).items()}
    linked = links(copies)
    for link in linked:
        if middle not in (link.source, link.target):
            raise ValueError(f"{link} does not pass {middle}, the centre of this picture")
    leaves = sorted({end for link in linked for end in (link.source, link.target)} - {middle})
    width = max(len(leaves), 3) * COLUMN
    most = max((link.bytes for link in linked), default=1)
    top = CENTRE_HEIGHT + GAP
    body = [_centre(middle, said.get(middle, []), linked, width=width)]
    tallest = max((len(said.get(leaf, [])) for leaf in leaves), default=0)
    for number, leaf in enumerate(leaves):
        x = (number + 0.5) * width / max(len(leaves), 1)
        body.append(_leaf(leaf, said.get(leaf, []), x=x, y=top, lines=tallest))
        for link in linked:
            if leaf in (link.source, link.target):
                body.append(_between(link, up=link.target == middle, x=x, most=most))
    bottom = top + LINE * (1 + tallest) + 22
    key, key_height = legend(["communication"], width, notes=["thicker: more bytes"])
    return Picture(
        title=title,
        description=" ".join(f"{link}." for link in linked),
        width=width,
        height=bottom + key_height,
        body="".join(body) + f'<g transform="translate(0 {bottom:g})">{key}</g>',
        lines=tuple(_text_lines(middle, leaves, said, linked)),
    )


def _centre(name: str, notes: list[str], linked: Sequence[Link], *, width: float) -> str:
    colour = colour_of(name)
    ink = f"fill:{ink_on(colour)}"
    total = f"{sum(link.bytes for link in linked):,} B"
    words = " · ".join([name, *notes])
    return (
        rectangle(0.5, 0, width - 1, CENTRE_HEIGHT, rx=7, fill=colour, stroke="var(--line)")
        + text(width / 2, 13, words, size=13, text_anchor="middle", style=ink, class_="strong")
        + text(width / 2, 29, f"{total} through its link", size=12, text_anchor="middle", style=ink)
    )


def _leaf(name: str, notes: list[str], *, x: float, y: float, lines: int) -> str:
    colour = colour_of(name)
    ink = f"fill:{ink_on(colour)}"
    height = LINE * (1 + lines) + 12
    shapes = [
        rectangle(x - BOX / 2, y, BOX, height, rx=7, fill="var(--band)", stroke="var(--line)"),
        rectangle(x - BOX / 2, y, BOX, LINE + 6, rx=7, fill=colour, stroke="var(--line)"),
        text(x, y + 12, name, size=12.5, text_anchor="middle", style=ink, class_="strong"),
    ]
    for number, note in enumerate(notes, 1):
        shapes.append(text(x, y + 14 + LINE * number, note, size=11, text_anchor="middle"))
    return "".join(shapes)


def _between(link: Link, *, up: bool, x: float, most: int) -> str:
    """An upright arrow beside the other one of the same two, with its bytes."""
    side = -1 if up else 1
    thickness = max(THINNEST, THICKEST * link.bytes / most)
    top, bottom = CENTRE_HEIGHT + 3, CENTRE_HEIGHT + GAP - 3
    start, end = (bottom, top) if up else (top, bottom)
    place = x + side * 8
    upright = element(
        "g",
        arrow(start, end, 0, thickness, colour_of(link.source)),
        transform=f"translate({place:g} 0) rotate(90)",
    )
    height = bottom - 9 if up else top + 9  # so that neighbours' labels do not meet
    label = text(
        place + side * 9, height, human_bytes(link.bytes), size=10.5,
        text_anchor="end" if up else "start",
    )  # fmt: skip
    return tooltip(str(link), upright, label)


def _text_lines(
    centre: str, leaves: Sequence[str], notes: Mapping[str, Sequence[str]], linked: Sequence[Link]
) -> Iterable[str]:
    yield f"  {' · '.join([centre, *notes.get(centre, [])])}"
    for leaf in leaves:
        amounts = {(link.source, link.target): human_bytes(link.bytes) for link in linked}
        up, down = amounts.get((leaf, centre), "0 B"), amounts.get((centre, leaf), "0 B")
        words = " · ".join([leaf, *notes.get(leaf, [])])
        yield f"    ▲ {up:>9}  ▼ {down:>9}   {words}"
