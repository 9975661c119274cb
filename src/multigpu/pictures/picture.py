"""What every drawing function returns: a picture, as SVG and as text; and what it is drawn with.

A `Picture` is drawn once. `Slides` are pictures one after the other, a `Table` is rows of text.
All of them are shown by a notebook as they are, and `text()` is for a terminal.
"""

import html
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import floor, log10
from typing import Any
from uuid import uuid4
from xml.sax.saxutils import escape, quoteattr

from multigpu.pictures.palette import CLASS, HOST, color, ink_on, style_sheet

CHARACTER = 0.6  # width of a character relative to the font size: a safe upper guess
MARGIN = 14.0
TITLE_SIZE = 15.0
TITLE_HEIGHT = 30.0
ZOOM = 1.2  # shown this much larger where there is room: drawn narrow, so that a phone can show it
LEGEND_SIZE, LEGEND_ROW, SWATCH = 11.5, 18.0, 26.0


def element(tag: str, /, *children: str, **attributes: object) -> str:
    """One element. Attributes: `stroke_width=2` becomes `stroke-width="2"`, None leaves it out."""
    written = "".join(
        f" {name.rstrip('_').replace('_', '-')}={quoteattr(_number(value))}"
        for name, value in attributes.items()
        if value is not None
    )
    if not children:
        return f"<{tag}{written}/>"
    return f"<{tag}{written}>{''.join(children)}</{tag}>"


def _number(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def translated(x: float, y: float, *children: str) -> str:
    """A group whose origin is at (x, y)."""
    return f'<g transform="translate({x:g} {y:g})">{"".join(children)}</g>'


def text(x: float, y: float, content: str, *, size: float = 13, **attributes: object) -> str:
    """A line of text; `y` is its middle. `class_="muted"` or `"strong"` sets the voice."""
    attributes.setdefault("dominant_baseline", "central")
    return element("text", escape(content), x=x, y=y, font_size=size, **attributes)


def text_on(
    fill: str, x: float, y: float, content: str, *, anchor: str = "middle", **more: object
) -> str:
    """Text on something of the color `fill`, in black or white."""
    ink = f"fill:{ink_on(fill)}"  # as style: the sheet's rule for text would win over an attribute
    return text(x, y, content, text_anchor=anchor, style=ink, **more)  # type: ignore[arg-type]


def width_of(content: str, *, size: float = 13) -> float:
    """About how wide a line of text is, at most."""
    return len(content) * size * CHARACTER


def wrapped(content: str, width: float, *, size: float) -> list[str]:
    """Cut text into lines that fit into `width`."""
    return textwrap.wrap(content, int(width / (size * CHARACTER)), break_long_words=False)


def round_step(least: float) -> float:
    """The next of ..., 0.1, 0.2, 0.5, 1, 2, 5, 10, ...: from number to number on an axis."""
    power = 10.0 ** floor(log10(least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= least * (1 - 1e-9))


def rectangle(x: float, y: float, width: float, height: float, **attributes: object) -> str:
    """A rectangle from its upper left corner."""
    return element("rect", x=x, y=y, width=width, height=height, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def chip(x: float, y: float, width: float, label: str, fill: str, *, size: float = 13) -> str:
    """A solid rounded block with a name on it, centered on (x, y): a device, or work on it."""
    height = size * 1.85
    block = rectangle(
        x - width / 2, y - height / 2, width, height, rx=5, fill=fill, stroke="var(--line)"
    )
    return block + text_on(fill, x, y, label, size=size)


def striped_bar(x1: float, x2: float, y: float, thickness: float, fill: str) -> str:
    """A horizontal striped bar: communication. At least 3 units long, so that it can be seen."""
    if abs(x2 - x1) < 3:
        x2 = x1 + 3
    bar = {"x1": x1, "y1": y, "x2": x2, "y2": y, "stroke": fill, "stroke_width": thickness}
    return element("line", **bar, stroke_opacity=0.35) + element(
        "line", **bar, stroke_dasharray="5 3"
    )


def arrow(x1: float, x2: float, y: float, thickness: float, fill: str) -> str:
    """A horizontal striped arrow from x1 to x2: bytes on their way."""
    direction = 1 if x2 > x1 else -1
    half, length = thickness / 2 + 3.5, thickness * 0.5 + 8
    neck = x2 - direction * length
    head = element(
        "path",
        d=f"M{_number(x2)} {_number(y)}L{_number(neck)} {_number(y - half)}V{_number(y + half)}Z",
        fill=fill,
    )
    return striped_bar(x1, neck, y, thickness, fill) + head


def rank_lane(rank: int, y: float, width: float, height: float) -> str:
    """The ground on which a rank's values are drawn, with its name and its color."""
    return (
        rectangle(0.5, y, width - 1, height, rx=7, fill="var(--band)")
        + rectangle(0.5, y, 5, height, rx=2.5, fill=color(rank))
        + text(11, y + height / 2, f"rank {rank}", size=11.5, class_="strong")
    )


def traveling(way: str, tip: str, fill: str, thickness: float) -> str:
    """A striped arrow along the path `way`, and what the site's script moves along it."""
    shaft = {"d": way, "stroke": fill, "stroke_width": thickness, "fill": "none"}
    return (
        element("path", **shaft, stroke_opacity=0.35)
        + element("path", **shaft, stroke_dasharray="5 3", class_="stripes")
        + element("path", d=tip, fill=fill)
        + rectangle(-4, -4, 8, 8, rx=2, fill=fill, class_="packet", stroke="var(--line)",
                    style=f'offset-path:path("{way}");opacity:0')
    )  # fmt: skip


def tooltip(content: str, *children: str, **attributes: object) -> str:
    """A group that says `content` when the pointer rests on it."""
    return element("g", element("title", escape(content)), *children, **attributes)


def legend(
    kinds: Sequence[str], width: float, *, fills: Mapping[str, str], notes: Sequence[str]
) -> tuple[str, float]:
    """The one legend of all pictures: what solid, striped and filled mean.

    Entries for `kinds` (`compute`, `communication`, ...), then for the colors `fills`, then notes.
    Returns the markup, drawn from y = 0 down in a box of `width`, and its height.
    """
    entries = [(kind, _swatch(kind)) for kind in kinds]
    entries += [(name, _block(fill)) for name, fill in fills.items()]
    entries += [(note, "") for note in notes]
    parts, x, y = [], 0.0, 0.0
    for label, swatch in entries:
        indent = SWATCH + 6 if swatch else 0.0
        wide = indent + width_of(label, size=LEGEND_SIZE)
        if x and x + wide > width:
            x, y = 0.0, y + LEGEND_ROW
        words = text(indent, LEGEND_ROW / 2, label, size=LEGEND_SIZE, class_="muted")
        parts.append(translated(x, y, swatch, words))
        x += wide + 14
    return "".join(parts), y + LEGEND_ROW if entries else 0.0


def _swatch(kind: str) -> str:
    middle = LEGEND_ROW / 2
    if kind == "communication":
        return striped_bar(1, SWATCH - 1, middle, 8, HOST)
    if kind == "waiting":
        return line(1, middle, SWATCH - 1, middle, stroke=HOST, stroke_width=2.5)
    if kind == "memory":
        filled = rectangle(0.5, middle - 4.5, SWATCH * 0.6, 9, rx=1.5, fill=HOST)
        return _block("var(--band)") + filled
    return _block(HOST)


def _block(fill: str) -> str:
    return rectangle(0, LEGEND_ROW / 2 - 5, SWATCH, 10, rx=2, fill=fill, stroke="var(--line)")


class Shown:
    """What a notebook shows as `html()`, and a terminal as `text()`.

    A dataclass of it needs `repr=False`: IPython prefers a class's own `__repr__` to these methods.
    """

    def html(self) -> str:
        raise NotImplementedError

    def text(self) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.html()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.text())


class Picture(Shown):
    """A drawing that a notebook shows by itself. `svg()` is for files, `text()` for a terminal."""

    def __init__(
        self,
        title: str,
        body: Iterable[str],
        *,
        size: tuple[float, float],
        says: Iterable[str],
        lines: Iterable[str],
        kinds: Sequence[str] = (),
        fills: Mapping[str, str] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """`body` is drawn in a box of `size` (width, height) whose origin is below the title.

        The legend is below it. `says` are the sentences for a reader who cannot see it, `lines` are
        the picture as text.
        """
        self.title, self.lines = title, tuple(lines)
        self.description = " ".join(says) or "Nothing to show."
        self.width, height = size
        key, key_height = legend(kinds, self.width, fills=fills or {}, notes=notes)
        self.height = height + key_height
        self.body = "".join([*body, translated(0, height, key) if key else ""])

    def svg(self) -> str:
        """The picture as one self-contained `<svg>` element: inline in a page, or as a file."""
        rows = wrapped(self.title, self.width, size=TITLE_SIZE)
        top = MARGIN + TITLE_HEIGHT + (len(rows) - 1) * TITLE_SIZE * 1.3 if rows else MARGIN
        full_width, full_height = self.width + 2 * MARGIN, top + self.height + MARGIN
        heading = (
            text(MARGIN, MARGIN + 9 + i * TITLE_SIZE * 1.3, row, size=TITLE_SIZE, class_="strong")
            for i, row in enumerate(rows)
        )
        return element(
            "svg",
            element("title", escape(self.title or "Picture")),
            element("desc", escape(self.description)),
            element("style", style_sheet()),
            rectangle(
                0.5, 0.5, full_width - 1, full_height - 1,
                rx=10, fill="var(--paper)", stroke="var(--edge)",
            ),
            *heading,
            translated(MARGIN, top, self.body),
            xmlns="http://www.w3.org/2000/svg",
            class_=CLASS,
            role="img",
            viewBox=f"0 0 {full_width:g} {full_height:g}",
            width=f"{full_width * ZOOM:.0f}",
            height=f"{full_height * ZOOM:.0f}",
            style="max-width:100%;height:auto",
        )  # fmt: skip

    def html(self) -> str:
        """The same as `svg()`."""
        return self.svg()

    def text(self) -> str:
        """The picture as text, at most 80 columns wide if names are short."""
        heading = (self.title, "") if self.title else ()
        return "\n".join((*heading, *self.lines))


@dataclass(frozen=True)
class Slide:
    """One step: its button's label, its picture, and a sentence or two below it."""

    label: str
    picture: Picture
    says: str = ""


STYLE = """
#ID { border: 0; margin: 0; padding: 0; min-width: 0; }
#ID > legend { float: none; width: auto; margin: 0 0 .5em; padding: 0; font-weight: 650;
  font-size: 1em; }
#ID > input { position: absolute; opacity: 0; }
#ID > label { display: inline-block; margin: 0 .3em .4em 0; padding: .25em .65em;
  border: 1px solid #6E7781; border-radius: 7px; font: 600 .85em ui-monospace, monospace;
  cursor: pointer; }
#ID > input:checked + label { background: #005a8f; border-color: #005a8f; color: #fff; }
#ID > input:focus-visible + label { outline: 3px solid #56B4E9; outline-offset: 2px; }
#ID > div > div { display: none; }
#ID > div p { margin: .4em 0; }
@media print { #ID > div > div { display: block !important; } }
"""
KEYS = 'data-lm-suppress-shortcuts="true"'  # else JupyterLab takes the arrow keys for itself
# While no step is chosen by these rules nothing shows, so there is one rule per step.
SHOW = "#ID > input:nth-of-type({n}):checked ~ div > div:nth-child({n}) {{ display: block; }}"


@dataclass(frozen=True, repr=False)
class Slides(Shown):
    """Pictures that a notebook shows one at a time, with a button for each.

    The stepper needs no script, because it is made of radio buttons and style rules alone: click a
    step, or go through them with the arrow keys. `text()` is all of them as text.
    """

    title: str
    slides: Sequence[Slide]

    def text(self) -> str:
        """All steps one below the other, for a terminal."""
        blocks = ("\n".join((slide.label, *slide.picture.lines)) for slide in self.slides)
        return "\n".join((self.title, "", *blocks))

    def html(self) -> str:
        """The stepper as one self-contained piece of HTML. Its ids are new in every call."""
        name = f"steps-{uuid4().hex[:8]}"
        rules = [SHOW.format(n=number + 1) for number in range(len(self.slides))]
        style = "\n".join((STYLE, *rules)).replace("ID", name)
        buttons = "".join(
            f'<input type="radio" name="{name}" id="{name}-{number}" {KEYS}'
            f"{' checked' if number == 0 else ''}>"
            f'<label for="{name}-{number}">{html.escape(slide.label)}</label>'
            for number, slide in enumerate(self.slides)
        )
        shown = "".join(
            f"<div>{slide.picture.svg()}<p>{html.escape(slide.says)}</p></div>"
            for slide in self.slides
        )
        # In a page's body HTML allows a style sheet only inside a drawing; it holds for all.
        hidden = 'width="0" height="0" aria-hidden="true" style="position:absolute"'
        sheet = f"<svg {hidden}><style>{style}</style></svg>"
        return (
            f'{sheet}<fieldset id="{name}"><legend>{html.escape(self.title)}</legend>'
            f"{buttons}<div>{shown}</div></fieldset>"
        )


@dataclass(frozen=True, repr=False)
class Table(Shown):
    """Rows of text under column names. Columns in `numbers` are set to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[str] = frozenset()

    def html(self) -> str:
        """The table as one `<table>` element; the page around it gives it its look."""

        def row_of(cells: Sequence[str], tag: str, style: str, scope: str | None = None) -> str:
            cell_of = partial(element, tag, scope=scope)
            return element("tr", *(
                cell_of(escape(cell), style=style if name in self.numbers else None)
                for name, cell in zip(self.columns, cells, strict=True)
            ))  # fmt: skip

        head = row_of(self.columns, "th", "text-align:right", scope="col")
        together = "text-align:right;white-space:nowrap"  # a number and its unit
        return element(
            "table",
            element("caption", escape(self.title)),
            element("thead", head),
            element("tbody", "", *(row_of(row, "td", together) for row in self.rows)),
        )

    def text(self) -> str:
        """The table as text."""
        every = [self.columns, *self.rows]
        wide = [max(len(row[i]) for row in every) for i in range(len(self.columns))]
        sides = [">" if name in self.numbers else "<" for name in self.columns]
        forms = [f"{{:{side}{width}}}" for side, width in zip(sides, wide, strict=True)]
        head, *rows = ("  ".join(forms).format(*row).rstrip() for row in every)
        rule = "  ".join("─" * width for width in wide)
        return "\n".join([self.title, "", head, rule, *rows])
