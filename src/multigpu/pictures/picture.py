"""What every drawing function returns: one picture, as SVG and as text."""

from collections.abc import Callable
from dataclasses import dataclass
from xml.sax.saxutils import escape

from multigpu.pictures import paper
from multigpu.pictures.svg import element, rectangle, text, wrapped

MARGIN = 14.0
TITLE_SIZE = 15.0
TITLE_HEIGHT = 30.0
ZOOM = 1.2  # shown this much larger where there is room: drawn narrow, so that a phone can show it


@dataclass(frozen=True)
class Picture:
    """A drawing that a notebook shows by itself. `svg()` is for files, `text()` for a terminal.

    `body` is drawn in a box of `width` x `height` whose origin is below the title.
    """

    title: str
    description: str  # what a reader who cannot see it is told
    width: float
    height: float
    body: str
    lines: tuple[str, ...]
    has_links: bool = False  # then it is no mere image: the keyboard must reach them

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
            element("style", paper.style_sheet()),
            rectangle(
                0.5, 0.5, full_width - 1, full_height - 1,
                rx=10, fill="var(--paper)", stroke="var(--edge)",
            ),
            *heading,
            element("g", self.body, transform=f"translate({MARGIN:g} {top:g})"),
            xmlns="http://www.w3.org/2000/svg",
            class_=paper.CLASS,
            role="group" if self.has_links else "img",
            viewBox=f"0 0 {full_width:g} {full_height:g}",
            width=f"{full_width * ZOOM:.0f}",
            height=f"{full_height * ZOOM:.0f}",
            style="max-width:100%;height:auto",
        )  # fmt: skip

    def text(self) -> str:
        """The picture in letters, at most 80 columns wide where names are short."""
        heading = (self.title, "") if self.title else ()
        return "\n".join((*heading, *self.lines))

    def _repr_html_(self) -> str:
        return self.svg()

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        write: Callable[[str], None] = printer.text  # type: ignore[attr-defined]
        write(self.text())
