"""``.. run::`` and ``:run:``: Python in a lesson, run by the build, with what it gave below it.

    .. script-diff:: ../scripts/one_gpu.py ../scripts/ddp.py

shows a script, and what is new in it.

The directive only leaves a marker. When a page has been read, all its cells in reading order, and
then the values of ``:run:``, are one notebook. Its outputs come from the page's record
(:mod:`course.records`), and the markers become code and outputs.
"""

import os
import re
from difflib import unified_diff
from pathlib import Path
from typing import ClassVar

import nbformat
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from course import execution, records
from course.element import html, raw

logger = logging.getLogger(__name__)
FOLDER = "notebooks/lessons"  # where the lessons' notebooks are, so that both run alike
FLAGS = ("varies", "quiet", "hide-code", "hide-output")  # options that are tags of the cell
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
PYTHON = {"python", "python3", "py", "py3", "pycon", "ipython", "ipython3", "default"}


class cell(nodes.General, nodes.Element):
    """A ``.. run::`` whose code has not run yet."""


class value(nodes.Inline, nodes.TextElement):
    """A ``:run:`` whose expression has no value yet."""


class Run(SphinxDirective):
    has_content = True
    option_spec: ClassVar = {
        "hide-code": directives.flag,
        "hide-output": directives.flag,
        "raises": directives.unchanged_required,
        "varies": directives.flag,
        "quiet": directives.flag,
    }

    def run(self):
        self.assert_has_content()
        node = cell("", source="\n".join(self.content), options=dict(self.options))
        self.set_source_info(node)
        return [node]


class RunRole(SphinxRole):
    def run(self):
        node = value("", "", expression=self.text)
        self.set_source_info(node)
        return [node], []


def notebook_of(cells, values):
    """The page as a notebook: its cells, then one print per value."""
    made = []
    for node in cells:
        tags = [flag for flag in FLAGS if flag in node["options"]]
        tags += ["raises-exception"] if "raises" in node["options"] else []
        made.append((node["source"], tags))
    made += [(f"print({node['expression']}, end='')", [records.VALUE]) for node in values]
    return nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(source, metadata={"tags": tags} if tags else {})
            for source, tags in made
        ]
    )


def fill_page(app, doctree):
    """Replace the page's markers by code, outputs and values; warn where a cell failed."""
    cells, values = list(doctree.findall(cell)), list(doctree.findall(value))
    warn_of_unrun_python(app, doctree)
    if not cells and not values:
        return
    docname, notebook = app.env.docname, notebook_of(cells, values)
    failed = None
    try:
        said = records.outputs(app, notebook, docname, Path(app.srcdir).parent / FOLDER)
        app.env.metadata[docname]["course_record"] = said  # for the foot of the page
        root = Path(app.srcdir).parent
        for path in (records.path_of(root, docname), *(root / name for name in said["reads"])):
            app.env.note_dependency(os.path.relpath(path, app.srcdir))
    except execution.CellFailed as failure:
        app.env.note_reread()  # else the next build would take the page as done
        logger.warning("cell failed: %s", failure, location=[*cells, *values][failure.index])
        failed = failure.index
    for node, ran in zip([*cells, *values], notebook.cells, strict=True):
        if isinstance(node, cell):
            if failed is None:
                warn_unless_it_raised(node, ran)
            node.replace_self(shown_cell(node, ran))
        else:
            words = "".join(output.get("text", "") for output in ran.get("outputs", []))
            node.replace_self(nodes.inline("", words, classes=["course-value"]))


def warn_unless_it_raised(node, ran):
    expected = node["options"].get("raises")
    raised = [output.ename for output in ran.outputs if output.output_type == "error"]
    if expected and raised != [expected]:
        came = raised[0] if raised else "no error"
        logger.warning("cell should raise %s; %s came", expected, came, location=node)


def shown_cell(node, ran):
    box = html("div", classes=["course-cell"])
    if "hide-code" not in node["options"]:
        code = nodes.literal_block(node["source"], node["source"], language="python3")
        code["classes"].append("course-code")
        box += code
    if "hide-output" not in node["options"]:
        box += shown(ran.outputs)
    return box


def warn_of_unrun_python(app, doctree):
    """In a lesson every line of Python runs; a file shown by literalinclude is run by a test."""
    if not app.env.docname.startswith("lessons/"):
        return
    for block in doctree.findall(nodes.literal_block):
        language = block.get("language", "default")
        if language in PYTHON and "source" not in block and "xml:space" in block:
            logger.warning(
                "Python that the build does not run: write '.. run::', or name the language",
                location=block,
            )


def add_foot(app, pagename, templatename, context, doctree):
    """Tell the page's foot when and where its outputs were recorded."""
    said = app.env.metadata.get(pagename, {}).get("course_record")
    if said:
        context["body"] += records.foot(said)


# --- what a cell gave ----------------------------------------------------------------------------


def shown(cell_outputs):
    """The outputs in order, in one box; neighboring prints are one block."""
    box = html("div", classes=["course-output"])
    for output in joined(cell_outputs):
        kind = output["output_type"]
        if kind == "stream":
            box += printed(output["text"], "course-" + output["name"])
        elif kind == "error":
            box += printed(f"{output['ename']}: {output['evalue']}", "course-error")
        else:
            box += displayed(output["data"])
    return box if box.children else []


def joined(cell_outputs):
    """Streams of the same name that follow each other become one output."""
    outputs = []
    for output in cell_outputs:
        before = outputs[-1] if outputs else None
        if before and output.output_type == "stream" and before.get("name") == output.name:
            outputs[-1] = {**before, "text": before["text"] + output.text}
        else:
            outputs.append(dict(output))
    return outputs


def printed(words, style):
    words = ANSI.sub("", words).rstrip("\n")
    # A long line scrolls inside the block, so the keyboard must be able to reach it.
    return html("pre", words, classes=[style], tabindex="0") if words else []


def displayed(data):
    """The richest form that needs neither script nor request."""
    if "image/svg+xml" in data:
        svg = data["image/svg+xml"]
        drawn = svg[svg.index("<svg") :]  # an XML declaration has no place inside a page
        return html("div", raw(drawn), classes=["course-picture"])
    if "text/html" in data:
        # A wide table scrolls, too.
        return html("div", raw(data["text/html"]), classes=["course-html"], tabindex="0")
    if "image/png" in data:
        encoded = data["image/png"].replace("\n", "")
        words = ANSI.sub("", data.get("text/plain", "figure"))
        return html("img", src=f"data:image/png;base64,{encoded}", alt=words)
    return printed(data.get("text/plain", ""), "course-result")


def without_docstring(path):
    """The lines of a script after its docstring."""
    return path.read_text(encoding="utf-8").split('"""', 2)[2].strip("\n").splitlines()


def difference(old, new):
    """All lines of ``new``, and those of ``old`` that are gone: marked ``+``, ``-`` or blank."""
    lines = unified_diff(old, new, lineterm="", n=len(old))
    return list(lines)[3:]  # without the names of the files and the numbers of the lines


class ScriptDiff(SphinxDirective):
    required_arguments = 2

    def run(self):
        code = []
        for name in self.arguments:
            relative, path = self.env.relfn2path(name)
            self.env.note_dependency(relative)
            code.append(without_docstring(Path(path)))
        words = "\n".join(difference(*code))
        return [nodes.literal_block(words, words, language="diff")]


def setup(app):
    app.add_config_value("course_seconds_per_cell", 60, "env")
    app.add_config_value("course_record", "", "")  # "quiet" or "anyway": see tools/record.py
    app.add_node(cell)
    app.add_node(value)
    app.add_directive("run", Run)
    app.add_role("run", RunRole())
    app.add_directive("script-diff", ScriptDiff)
    app.connect("doctree-read", fill_page)
    app.connect("html-page-context", add_foot)
