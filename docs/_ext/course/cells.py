"""``.. run::`` and ``:run:``: Python in a lesson, run by the build, with what it gave below it.

The directive only leaves a marker. When a page has been read, all its cells in reading order, and
then the values of ``:run:``, are one notebook. Its outputs come from the page's record
(:mod:`course.records`), and the markers become code and outputs.
"""

import os
from pathlib import Path
from typing import ClassVar

import nbformat
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from course import execution, outputs, records
from course.element import html

logger = logging.getLogger(__name__)
FOLDER = "notebooks/lessons"  # where the lessons' notebooks are, so that both run alike
FLAGS = ("varies", "quiet", "hide-code", "hide-output")  # options that are tags of the cell
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
    notebook = nbformat.v4.new_notebook()
    for node in cells:
        tags = [flag for flag in FLAGS if flag in node["options"]]
        tags += ["raises-exception"] if "raises" in node["options"] else []
        notebook.cells.append(
            nbformat.v4.new_code_cell(node["source"], metadata={"tags": tags} if tags else {})
        )
    for node in values:
        notebook.cells.append(
            nbformat.v4.new_code_cell(
                f"print({node['expression']}, end='')", metadata={"tags": [records.VALUE]}
            )
        )
    return notebook


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
        note_record(app, docname, said)
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


def note_record(app, docname, said):
    """Remember what the foot of the page says, and what makes the page be read again."""
    app.env.course_records[docname] = said
    root = Path(app.srcdir).parent
    for path in (records.path_of(root, docname), *(root / name for name in said["reads"])):
        app.env.note_dependency(os.path.relpath(path, app.srcdir))


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
        box += outputs.shown(ran.outputs)
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


def say_record(app, pagename, templatename, context, doctree):
    """Tell the page's foot when and where its outputs were recorded."""
    said = getattr(app.env, "course_records", {}).get(pagename)
    if said:
        context["body"] += records.foot(said)


def prepare(app):
    if not hasattr(app.env, "course_records"):
        app.env.course_records = {}  # docname -> what its record says of itself


def forget(app, env, docname):
    env.course_records.pop(docname, None)


def merge(app, env, docnames, other):
    env.course_records.update(
        {name: other.course_records[name] for name in docnames if name in other.course_records}
    )


def setup(app):
    app.add_config_value("course_seconds_per_cell", 60, "env")
    app.add_config_value("course_record", "", "")  # "quiet" or "anyway": see tools/record.py
    app.add_node(cell)
    app.add_node(value)
    app.add_directive("run", Run)
    app.add_role("run", RunRole())
    app.connect("builder-inited", prepare)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    app.connect("doctree-read", fill_page)
    app.connect("html-page-context", say_record)
