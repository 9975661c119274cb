"""Exercise cards and exercise pages, made from the docstrings that every starter has.

The docstrings are reStructuredText; the page shows them as they are, so the task a learner reads in
the editor and on the site is the same text. They come from the solutions, of which starters are
made: a learner who is writing an answer in ``exercises/`` should not have to wait for a new site.
"""

import ast
import re
from functools import cache

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from course.element import box, html
from course.execution import ROOT
from multigpu.checking.catalog import Catalog, Course, UnknownExercise
from multigpu.checking.source import definitions

NO_CODE = ".. code-block:: none\n\n"
LESSON = re.compile(r"\b(?:docs)?/?lessons/(\w+)(?:\.rst)?")


@cache
def catalog():
    return Catalog(Course(ROOT))


def find(name):
    """The exercise ``module.function``.  Raises UnknownExercise with a suggestion."""
    return catalog().one(name)


def source_of(module):
    return ROOT / "solutions" / f"{module}.py"


def anchor_of(exercise):
    return f"exercise-{exercise.name}".replace("_", "-").replace(".", "-")


def label_of(exercise):
    return f"exercise-{exercise.name}".replace(".", "-").lower()


def as_page_text(docstring):
    """A docstring as the site's reStructuredText: paths of lessons become links."""
    return LESSON.sub(r":doc:`/lessons/\1`", docstring)


def with_literal_blocks(docstring):
    """In a module's docstring, blocks that are indented are commands and diagrams, not quotes."""
    blocks = docstring.split("\n\n")
    marked = [f"{NO_CODE}{block}" if block.startswith("    ") else block for block in blocks]
    return "\n\n".join(marked)


def commands(exercise):
    """What to type to check the exercise and to get a hint, as one console block."""
    typed = f"$ multigpu check {exercise.name}\n$ multigpu hint {exercise.name}"
    return nodes.literal_block(typed, typed, language="console", classes=["course-commands"])


def signature(exercise):
    """What the exercise takes and returns, with its types."""
    source = source_of(exercise.chapter.module).read_text(encoding="utf-8")
    node = definitions(source)[exercise.function]
    if isinstance(node, ast.ClassDef):
        inits = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        arguments = ast.unparse(inits[0].args).removeprefix("self").lstrip(", ") if inits else ""
        words = f"{node.name}({arguments})"
    else:
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        words = f"{node.name}({ast.unparse(node.args)}){returns}"
    return nodes.literal_block(words, words, language="python3", classes=["course-signature"])


class Card(SphinxDirective):
    """``.. exercise:: data_parallel.split``: task, where to write it, how to check it."""

    required_arguments = 1

    def run(self):
        try:
            exercise = find(self.arguments[0])
        except UnknownExercise as problem:
            raise self.error(str(problem)) from None
        self.env.note_dependency(str(source_of(exercise.chapter.module)))
        summary = as_page_text(exercise.task.partition("\n\n")[0])
        place = html("code", f"exercises/{exercise.file}")
        in_full = f":ref:`The task in full <{label_of(exercise)}>`"
        link, _ = self.parse_inline(in_full, lineno=self.lineno)
        return [
            box(
                "exercise",
                "Exercise",
                html("p", html("code", exercise.function), classes=["course-title"]),
                *self.parse_text_to_nodes(summary),
                html("p", "Write it in ", place, ", then type:"),
                commands(exercise),
                html("p", *link, classes=["course-more"]),
            )
        ]


class ModulePage(SphinxDirective):
    """``.. exercise-module:: data_parallel``: its introduction and every exercise in full."""

    required_arguments = 1

    def run(self):
        source = source_of(self.arguments[0])
        self.env.note_dependency(str(source))
        said = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8")))
        introduction = as_page_text(with_literal_blocks(said)).partition("\n\n")[2]
        exercises = catalog().find(self.arguments[0])
        return [*self.parse_text_to_nodes(introduction), *map(self.section, exercises)]

    def section(self, exercise):
        anchor, label = anchor_of(exercise), label_of(exercise)
        section = nodes.section(ids=[anchor], names=[label])
        section += nodes.title("", "", nodes.literal("", exercise.function))
        section += signature(exercise)
        section.extend(self.parse_text_to_nodes(as_page_text(exercise.task)))
        section += commands(exercise)
        domain = self.env.domains.standard_domain
        domain.labels[label] = self.env.docname, anchor, exercise.function
        domain.anonlabels[label] = self.env.docname, anchor
        return section


def setup(app):
    app.add_directive("exercise", Card)
    app.add_directive("exercise-module", ModulePage)
