"""The package in numbers and pictures, for docs/reference/architecture.rst, counted by each build.

``.. package-layers::`` is the table of subpackages with files and lines; its body is a list of
``name: what lives there``.  ``.. package-reading::`` is the same for files, in the order of its
body, each named from the package's folder.  ``.. package-way:: batch`` draws one of the ways in
``ways.toml``.
"""

import ast
import tomllib
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from course import outputs
from course.stations import Station, way
from multigpu.pictures import Table

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
        for line in self.content:
            name, _, says = line.partition(": ")
            files = sorted((PACKAGE / name).rglob("*.py"))
            files += [PACKAGE / "cli.py"] if name == "commands" else []
            rows.append((name, says, str(len(files)), f"{lines_of(files):,}"))
        rows.append(("all", "", str(len(everything)), f"{lines_of(everything):,}"))
        stations = [station for each in ways().values() for station in each]
        named = {ROOT / file for station in stations for file in station.files}
        table = Table(
            "src/multigpu",
            ("subpackage", "what lives there", "files", "lines"),
            tuple(rows),
            frozenset({"files", "lines"}),
        )
        words = (
            f"{sum(map(code_of, everything)):,} of these lines are code, the others docstrings, "
            f"comments and blank lines. The two ways below pass through {len(named)} files with "
            f"{lines_of(named):,} lines. The first lines of each file say what it is for and what "
            "to read next."
        )
        return [shown(table), nodes.paragraph("", words)]


class PackageReading(SphinxDirective):
    has_content = True

    def run(self):
        lines = [line.partition(": ") for line in self.content]
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
        return [shown(way(ways()[name], title=f"The way of one {name}"))]


def shown(picture):
    return outputs.displayed({"text/html": picture._repr_html_()})


def setup(app):
    app.add_directive("package-layers", PackageLayers)
    app.add_directive("package-reading", PackageReading)
    app.add_directive("package-way", PackageWay)
