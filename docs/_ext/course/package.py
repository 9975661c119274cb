"""The package in numbers and lists, for docs/reference/architecture.rst, counted by each build.

``.. package-layers::`` is the table of subpackages with files and lines; its body is a list of
``name: what it contains``.  ``.. package-reading::`` is the same for files, in the order of its
body, each named from the package's folder, and says how long they take.  ``.. package-way:: batch``
lists the stations of one of the ways in ``ways.toml``, with links to their files, which get pages
of their own.
"""

import tomllib
from itertools import groupby

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from course import times
from course.cells import displayed
from course.element import box, html
from course.execution import ROOT
from course.way import said
from multigpu.pictures import Table

PACKAGE = ROOT / "src" / "multigpu"
WAYS = ROOT / "docs" / "reference" / "ways.toml"


def lines_of(files):
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def minutes_of(files):
    """How long people read these files, counted as for a page; blank lines take no time."""
    lines = "\n".join(path.read_text(encoding="utf-8") for path in files).splitlines()
    return sum(bool(line.strip()) for line in lines) / times.LINES_A_MINUTE


def ways():
    """The stations of each way, by its name."""
    return tomllib.loads(WAYS.read_text(encoding="utf-8"))


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
        named = {ROOT / file for station in stations for file in station["files"]}
        table = Table(
            "src/multigpu",
            ("subpackage", "what it contains", "files", "lines"),
            tuple(rows),
            frozenset({"files", "lines"}),
        )
        words = (
            f"The paths below pass through {len(named)} files with {lines_of(named):,} lines. "
            "The first lines of each file say what it is for."
        )
        return [shown(table), nodes.paragraph("", words)]


class PackageReading(SphinxDirective):
    """``.. package-reading:: The first evening``: a table of files, and how long they take."""

    has_content = True
    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        lines = [row.partition(": ") for row in self.content]
        files = [PACKAGE / name for name, _, _ in lines]
        for path in files:
            self.env.note_dependency(str(path))
        rows = [
            (name, says, f"{lines_of([file]):,}")
            for (name, _, says), file in zip(lines, files, strict=True)
        ]
        rows.append(("all", "", f"{lines_of(files):,}"))
        columns = ("file", "what you learn there", "lines")
        table = Table(self.arguments[0], columns, tuple(rows), frozenset({"lines"}))
        words = (
            f"At {times.LINES_A_MINUTE} lines a minute, blank ones not counted, that takes about "
            f"{said(minutes_of(files))}."
        )
        return [shown(table), nodes.paragraph("", words)]


def shown(table):
    return displayed({"text/html": table.html()})


class PackageWay(SphinxDirective):
    required_arguments = 1

    def run(self):
        self.env.note_dependency(str(WAYS))
        stations = ways()[self.arguments[0]]
        boxes, number = [], 1
        for process, group in groupby(stations, key=lambda station: station["process"]):
            items = [html("li", *self.parts_of(station)) for station in group]
            boxes.append(box("process", process, html("ol", *items, start=str(number))))
            number += len(items)
        return boxes

    def parts_of(self, station):
        """A station: name and files, what happens there, what it shares and what it passes on."""
        files = [part for file in station["files"] for part in (" ", self.link_to(file))]
        yield html("p", html("strong", station["name"]), *files)
        yield html("p", station["says"])
        if "shares" in station:
            yield html("p", f"With the other ranks: {station['shares']}", classes=["course-hands"])
        if "hands" in station:
            yield html("p", f"Passes on {station['hands']}", classes=["course-hands"])

    def link_to(self, file):
        shown = nodes.literal(file, file)
        if ROOT / file not in files_with_pages():
            return shown
        address = self.env.app.builder.get_relative_uri(self.env.docname, page_of(ROOT / file))
        return html("a", shown, href=address)


def files_with_pages():
    """The package's files on the ways. A check has no page, as it contains right answers."""
    named = {ROOT / file for way in ways().values() for each in way for file in each["files"]}
    return sorted(file for file in named if file.is_relative_to(PACKAGE))


def page_of(path):
    return f"_modules/{path.relative_to(ROOT).with_suffix('').as_posix()}"


def pages_of_files(app):
    for path in files_with_pages():
        page, file = page_of(path), path.relative_to(ROOT).as_posix()
        back = app.builder.get_relative_uri(page, "reference/architecture")
        parents = [{"link": back, "title": "Architecture"}]
        heading = f'<h1 class="course-wide"><code class="literal">{path.name}</code></h1>'
        code = app.builder.highlighter.highlight_block(path.read_text("utf-8"), "python3")
        yield page, {"title": file, "parents": parents, "body": heading + code}, "page.html"


def setup(app):
    app.add_directive("package-layers", PackageLayers)
    app.add_directive("package-reading", PackageReading)
    app.add_directive("package-way", PackageWay)
    app.connect("html-collect-pages", pages_of_files)
