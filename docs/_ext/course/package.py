"""The package in numbers and pictures, for docs/reference/architecture.rst, counted by each build.

``.. package-layers::`` is the table of subpackages with files and lines; its body is a list of
``name: what it contains``.  ``.. package-reading::`` is the same for files, in the order of its
body, each named from the package's folder.  ``.. package-way:: batch`` draws one of the ways in
``ways.toml``.
"""

import ast
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from course.cells import displayed
from multigpu.pictures import Picture, Table
from multigpu.pictures.palette import HOST, color
from multigpu.pictures.picture import chip, element, line, rectangle, striped_bar, text, wrapped

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "src" / "multigpu"
WAYS = ROOT / "docs" / "reference" / "ways.toml"


def lines_of(files):
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def code_of(path):
    """Lines that a program would miss: no blanks, comments, docstrings."""
    text = path.read_text(encoding="utf-8")
    said = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            first = node.body[0]
            said.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    rows = enumerate(map(str.strip, text.splitlines()), start=1)
    return sum(bool(row) and not row.startswith("#") and n not in said for n, row in rows)


def ways():
    """The stations of each way, by its name."""
    return {
        name: [Station(**{**each, "files": tuple(each["files"])}) for each in stations]
        for name, stations in tomllib.loads(WAYS.read_text(encoding="utf-8")).items()
    }


class PackageLayers(SphinxDirective):
    has_content = True

    def run(self):
        everything = sorted(PACKAGE.rglob("*.py"))
        for path in everything:
            self.env.note_dependency(str(path))
        rows = []
        for name, _, says in (row.partition(": ") for row in self.content):
            files = sorted((PACKAGE / name).rglob("*.py"))
            files += [PACKAGE / "cli.py"] if name == "commands" else []
            rows.append((name, says, str(len(files)), f"{lines_of(files):,}"))
        rows.append(("all", "", str(len(everything)), f"{lines_of(everything):,}"))
        stations = [station for each in ways().values() for station in each]
        named = {ROOT / file for station in stations for file in station.files}
        table = Table(
            "src/multigpu",
            ("subpackage", "what it contains", "files", "lines"),
            tuple(rows),
            frozenset({"files", "lines"}),
        )
        words = (
            f"{sum(map(code_of, everything)):,} of these lines are code, the others docstrings, "
            f"comments and blank lines. The two paths below pass through {len(named)} files with "
            f"{lines_of(named):,} lines. The first lines of each file say what it is for and what "
            "to read next."
        )
        return [shown(table), nodes.paragraph("", words)]


class PackageReading(SphinxDirective):
    has_content = True

    def run(self):
        lines = [row.partition(": ") for row in self.content]
        files = [PACKAGE / name for name, _, _ in lines]
        for path in files:
            self.env.note_dependency(str(path))
        rows = [
            (name, says, f"{lines_of([file]):,}", f"{code_of(file):,}")
            for (name, _, says), file in zip(lines, files, strict=True)
        ]
        rows.append(("all", "", f"{lines_of(files):,}", f"{sum(map(code_of, files)):,}"))
        columns = ("file", "what you learn there", "lines", "of them code")
        return [shown(Table("In this order", columns, tuple(rows), frozenset(columns[2:])))]


class PackageWay(SphinxDirective):
    required_arguments = 1

    def run(self):
        self.env.note_dependency(str(WAYS))
        name = self.arguments[0]
        return [shown(way(ways()[name], title=f"The path of one {name}"))]


def shown(picture):
    return displayed({"text/html": picture.html()})


# --- the picture of a way ------------------------------------------------------------------------
# Stations in one process stand in one frame, which has its name. What is handed on inside it goes
# along a thin arrow; what goes to another process travels, and is striped as in every picture.

WIDTH, INSET = 360.0, 12.0
HEAD, BETWEEN, GAP = 26.0, 26.0, 34.0  # a frame's name; from station to station; frame to frame
LINE, PADDING = 16.0, 9.0
SMALL = 11.5
ARROW, BESIDE = 30.0, 44.0  # where all arrows come down, and words beside them


@dataclass(frozen=True)
class Station:
    """One place on the way. `files` are those to read; `link` is where its name leads, if set."""

    name: str
    says: str
    files: tuple[str, ...]
    process: str  # where it runs: neighbors in the same one share a frame
    ranks: int = 0  # of the frame: so many processes, each with its color
    shares: str = ""  # what it exchanges with its like on the other ranks
    hands: str = ""  # what goes on to the next station
    link: str = ""


def way(stations: Sequence[Station], *, title: str) -> Picture:
    """Draw the stations from top to bottom."""
    y, body, tops = 0.0, [], []
    for _, frame in groupby(stations, key=lambda station: station.process):
        group = tuple(frame)
        begin, inside = y, []
        y += HEAD
        for station in group:
            inside.append(_station(station, y))
            tops.append((y, y + _height(station)))
            y += _height(station) + BETWEEN
        y += INSET - BETWEEN
        body += [_frame(group[0], begin, y), *inside]
        y += GAP
    for (one, other), (above, below) in zip(pairwise(stations), pairwise(tops), strict=True):
        body.append(_handed(one, above[1], below[0], travels=one.process != other.process))
    return Picture(
        title,
        body,
        size=(WIDTH, y - GAP + 8),
        says=map(_sentence, stations),
        lines=map(_sentence, stations),
        kinds=["communication"],
        notes=["a frame: one kind of process"],
        has_links=any(station.link for station in stations),
    )


def _words(station: Station) -> list[str]:
    return wrapped(station.says, WIDTH - 2 * INSET - 2 * PADDING, size=12)


def _height(station: Station) -> float:
    rows = 1 + len(station.files) + len(_words(station)) + 1.2 * bool(station.shares)
    return 2 * PADDING + rows * LINE


def _frame(first: Station, top: float, bottom: float) -> str:
    """The process around its stations, with a chip for each rank."""
    chips = [
        chip(WIDTH - 10 - 46 * (first.ranks - rank) + 23, top + 13, 42, f"rank {rank}",
             color(rank), size=10)
        for rank in range(first.ranks)
    ]  # fmt: skip
    return (
        rectangle(0.5, top, WIDTH - 1, bottom - top, rx=9, fill="none", stroke="var(--line)")
        + text(BESIDE, top + 13, first.process, size=12, class_="strong")
        + "".join(chips)
    )


def _station(station: Station, top: float) -> str:
    """A box: its name, its files, what happens there, and what it shares with other ranks."""
    x, width = INSET, WIDTH - 2 * INSET
    parts = [rectangle(x, top, width, _height(station), rx=6, fill="var(--band)")]
    row = top + PADDING + LINE / 2
    parts.append(_linked(station, text(x + PADDING, row, station.name, class_="strong")))
    for file in station.files:
        row += LINE
        parts.append(text(x + PADDING, row, file, size=SMALL, class_="muted"))
    for words in _words(station):
        row += LINE
        parts.append(text(x + PADDING, row, words, size=12))
    if station.shares:
        row += 1.2 * LINE
        parts.append(striped_bar(x + PADDING, x + PADDING + 34, row, 8, HOST))
        parts.append(text(x + PADDING + 42, row, station.shares, size=SMALL))
    return "".join(parts)


def _linked(station: Station, name: str) -> str:
    if not station.link:
        return name
    underlined = name.replace("<text ", '<text text-decoration="underline" ', 1)
    return element("a", underlined, href=station.link)


def _handed(station: Station, top: float, bottom: float, *, travels: bool) -> str:
    """The arrow to the next station, with what goes along it."""
    x = ARROW
    tip = f"M{x:g} {bottom:g}l-5 -8h10z"
    if travels:
        shaft = element(
            "path", d=f"M{x:g} {top:g}V{bottom - 8:g}", stroke=HOST, stroke_width=7,
            stroke_dasharray="5 3", fill="none",
        )  # fmt: skip
    else:
        shaft = line(x, top, x, bottom - 8, stroke=HOST, stroke_width=2)
    # Between two frames the words stand between them, beside the end of the upper one.
    middle = top + INSET + GAP / 2 if travels else (top + bottom) / 2
    label = text(BESIDE, middle, station.hands, size=SMALL, class_="muted")
    return shaft + element("path", d=tip, fill=HOST) + label


def _sentence(station: Station) -> str:
    files = ", ".join(station.files)
    shared = f" With the other ranks: {station.shares}." if station.shares else ""
    handed = f" It hands on {station.hands}." if station.hands else ""
    return f"{station.process}: {station.name} ({files}). {station.says}{shared}{handed}"


def setup(app):
    app.add_directive("package-layers", PackageLayers)
    app.add_directive("package-reading", PackageReading)
    app.add_directive("package-way", PackageWay)
