"""A small builder of SVG: each function returns one piece of markup as a string."""

from xml.sax.saxutils import escape, quoteattr

from multigpu.pictures.palette import ink_on

CHARACTER = 0.6  # width of a character relative to the font size: a safe upper guess


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


def text(x: float, y: float, content: str, *, size: float = 13, **attributes: object) -> str:
    """A line of text; `y` is its middle. `class_="muted"` or `"strong"` sets the voice."""
    attributes.setdefault("dominant_baseline", "central")
    return element("text", escape(content), x=x, y=y, font_size=size, **attributes)


def width_of(content: str, *, size: float = 13) -> float:
    """About how wide a line of text is, at most."""
    return len(content) * size * CHARACTER


def wrapped(content: str, width: float, *, size: float) -> list[str]:
    """Cut text into lines that fit into `width`."""
    rows: list[str] = []
    for word in content.split():
        if rows and width_of(f"{rows[-1]} {word}", size=size) <= width:
            rows[-1] += f" {word}"
        else:
            rows.append(word)
    return rows


def rectangle(x: float, y: float, width: float, height: float, **attributes: object) -> str:
    """A rectangle from its upper left corner."""
    return element("rect", x=x, y=y, width=width, height=height, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def chip(x: float, y: float, width: float, label: str, fill: str, *, size: float = 13) -> str:
    """A solid rounded block with a name on it, centred on (x, y): a device, or work on it."""
    height = size * 1.85
    block = rectangle(
        x - width / 2, y - height / 2, width, height, rx=5, fill=fill, stroke="var(--line)"
    )
    ink = f"fill:{ink_on(fill)}"  # as style: the sheet's rule for text would win over an attribute
    return block + text(x, y, label, size=size, text_anchor="middle", style=ink)


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


def tooltip(content: str, *children: str, **attributes: object) -> str:
    """A group that says `content` when the pointer rests on it."""
    return element("g", element("title", escape(content)), *children, **attributes)


def moment(lane: str, start: float, content: str, *children: str, of: str = "") -> str:
    """A part of a picture of time, which says `content`, for the pointer and for the site's script.

    `lane` and `start` are its place in time. Parts with the same `of` belong together: the calls of
    one collective on its ranks, the work on one micro-batch.
    """
    return tooltip(
        content, *children, data_lane=lane, data_start=f"{start:.6g}", data_of=of or None
    )


def _number(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
