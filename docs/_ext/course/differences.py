"""``.. differences:: refused``: what virtual GPUs do, made from the entries that a test runs.

The entries of each kind are in tests/unit/devices/differences.toml.
"""

import textwrap
import tomllib
from pathlib import Path

from sphinx.util.docutils import SphinxDirective

ENTRIES = Path(__file__).resolve().parents[3] / "tests" / "unit" / "devices" / "differences.toml"


class Differences(SphinxDirective):
    """A table of one kind: what you write, what a virtual GPU does, and what CUDA does."""

    required_arguments = 1

    def run(self):
        self.env.note_dependency(str(ENTRIES))
        entries = tomllib.loads(ENTRIES.read_text(encoding="utf-8"))[self.arguments[0]]
        columns = ["What you write", "Virtual GPU", "CUDA"][: len(entries[0])]
        widths = "45 25 30" if len(columns) == 3 else "45 55"
        lines = [
            ".. list-table::",
            "   :header-rows: 1",
            f"   :widths: {widths}",
            "   :class: course-differences",
            "",
        ]
        lines += row(*columns)
        for entry in entries:
            program = ".. code-block:: python\n\n" + textwrap.indent(entry["write"].strip(), "   ")
            comes = f"``{entry['virtual'].strip()}``" if entry["virtual"] else "runs"
            lines += row(*[program, comes, f"{entry.get('cuda')}."][: len(columns)])
        return self.parse_text_to_nodes("\n".join(lines))


def row(*cells):
    """One row of a list-table."""
    texts = [textwrap.indent(cell, " " * 7).lstrip() for cell in cells]
    return [f"   * - {texts[0]}", *[f"     - {text}" for text in texts[1:]]]


def setup(app):
    app.add_directive("differences", Differences)
