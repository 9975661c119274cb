"""A table that a notebook shows by itself, and that is text in a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape


@dataclass(frozen=True)
class Table:
    """Rows of text under column names. Columns in `numbers` are set to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[str] = frozenset()

    def html(self) -> str:
        """The table as one `<table>` element; the page around it gives it its look."""
        head = "".join(
            f'<th scope="col"{self._side(name)}>{escape(name)}</th>' for name in self.columns
        )
        body = "".join(f"<tr>{self._cells(row)}</tr>" for row in self.rows)
        return (
            f"<table><caption>{escape(self.title)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )

    def text(self) -> str:
        """The table in letters."""
        every = [self.columns, *self.rows]
        wide = [max(len(row[i]) for row in every) for i in range(len(self.columns))]
        lines = [
            "  ".join(self._padded(row, i, wide[i]) for i in range(len(wide))) for row in every
        ]
        rule = "  ".join("─" * width for width in wide)
        return "\n".join([self.title, "", lines[0].rstrip(), rule, *map(str.rstrip, lines[1:])])

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.html()

    def _cells(self, row: Sequence[str]) -> str:
        named = zip(self.columns, row, strict=True)
        together = ";white-space:nowrap"  # a number and its unit
        return "".join(
            f"<td{self._side(name, together)}>{escape(cell)}</td>" for name, cell in named
        )

    def _side(self, name: str, more: str = "") -> str:
        return f' style="text-align:right{more}"' if name in self.numbers else ""

    def _padded(self, row: Sequence[str], i: int, width: int) -> str:
        return row[i].rjust(width) if self.columns[i] in self.numbers else row[i].ljust(width)
