"""Exercise cards and exercise pages, made from the docstrings that every starter has.

The docstrings are reStructuredText; the page shows them as they are, so the task a learner reads in
the editor and on the site is the same text.
"""

import re

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from course.element import html, text
from course.starters import find, module_of, path_of

NO_CODE = ".. code-block:: none\n\n"
LESSON = re.compile(r"\b(?:docs)?/?lessons/(\w+)(?:\.rst)?")


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
    words = exercise.signature
    return nodes.literal_block(words, words, language="python3", classes=["course-signature"])


class FromSource(SphinxDirective):
    required_arguments = 1

    def look_up(self, lookup):
        """``lookup`` of the directive's argument; the page depends on the file it came from."""
        try:
            found = lookup(self.arguments[0])
        except LookupError as problem:
            raise self.error(str(problem)) from None
        self.env.note_dependency(path_of(self.arguments[0].partition(".")[0]))
        return found

    def link(self, exercise, words):
        return self.parse_inline(f":ref:`{words} <{exercise.label}>`", lineno=self.lineno)[0]


class Card(FromSource):
    """``.. exercise:: data_parallel.split``: task, where to write it, how to check it."""

    def run(self):
        exercise = self.look_up(find)
        place = f"exercises/{exercise.module}.py"
        return [
            html(
                "div",
                html("p", text("Exercise"), classes=["course-label"]),
                html("p", html("code", text(exercise.function)), classes=["course-title"]),
                *self.parse_text_to_nodes(as_page_text(exercise.summary)),
                html("p", text("Write it in "), html("code", text(place)), text(", then type:")),
                commands(exercise),
                html("p", *self.link(exercise, "The task in full"), classes=["course-more"]),
                classes=["course-box", "course-exercise"],
            )
        ]


class ModulePage(FromSource):
    """``.. exercise-module:: data_parallel``: its introduction and every exercise in full."""

    def run(self):
        module = self.look_up(module_of)
        introduction = as_page_text(with_literal_blocks(module.introduction))
        found = self.parse_text_to_nodes(introduction.partition("\n\n")[2])
        for exercise in module.exercises:
            found.append(self.section(exercise))
        return found

    def section(self, exercise):
        section = nodes.section(ids=[exercise.anchor], names=[exercise.label])
        section += nodes.title("", "", nodes.literal("", exercise.function))
        section += signature(exercise)
        section.extend(self.parse_text_to_nodes(as_page_text(exercise.task)))
        section += commands(exercise)
        place = self.env.docname, exercise.anchor
        labels = self.env.domains.standard_domain
        labels.labels[exercise.label] = (*place, exercise.function)
        labels.anonlabels[exercise.label] = place
        return section


def setup(app):
    app.add_directive("exercise", Card)
    app.add_directive("exercise-module", ModulePage)
