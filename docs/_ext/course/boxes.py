"""The boxes of a lesson: overview, key points, predict, surprise, and the notebook button."""

from typing import ClassVar

from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

from course import times
from course.element import box, html
from course.way import lesson_of, said
from multigpu.checking.lessons import LESSONS


class Overview(SphinxDirective):
    """Which lesson this is, how long it takes, what to know first and what you can do then."""

    has_content = True
    option_spec: ClassVar = {"before": directives.unchanged_required}

    def run(self):
        lesson = lesson_of(self.env.docname)
        if lesson is None:
            raise self.error(f"{self.env.docname} is not in multigpu.checking.lessons")
        facts = html("dl", classes=["course-facts"])
        for term, body in self.facts_of(lesson):
            facts += html("div", html("dt", term), body)
        return [
            box(
                "overview",
                f"Lesson {lesson.number} of {len(LESSONS)}",
                facts,
                html("p", "Afterwards you can", classes=["course-lead"]),
                *self.parse_content_to_nodes(),
                open_in_lab(f"lessons/{lesson.page}.ipynb", "Open this lesson as a notebook"),
            )
        ]

    def facts_of(self, lesson):
        # The page's end fills this in: only then are its words known.
        yield "Reading", html("dd", classes=["course-reading-time"])
        if lesson.notebook:
            yield "Notebook", html("dd", said(times.of_notebook(lesson.notebook)))
        if lesson.exercises:
            yield "Exercises", html("dd", said(times.of_exercises(lesson.exercises)))
        needs = [f":ref:`lesson-{page.replace('_', '-')}`" for page in lesson.needs]
        before = self.options.get("before") or " and ".join(needs)
        yield "Before you start", html("dd", *self.parse_inline(before, lineno=self.lineno)[0])


class KeyPoints(SphinxDirective):
    has_content = True

    def run(self):
        self.assert_has_content()
        return [box("keypoints", "Key points", *self.parse_content_to_nodes())]


class Surprise(SphinxDirective):
    has_content = True
    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        title, _ = self.parse_inline(self.arguments[0], lineno=self.lineno)
        title = html("p", *title, classes=["course-title"])
        return [box("surprise", "Surprise", title, *self.parse_content_to_nodes())]


class Predict(SphinxDirective):
    """A question whose answer stays folded away until the reader asks for it."""

    has_content = True
    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        self.assert_has_content()
        question, _ = self.parse_inline(self.arguments[0], lineno=self.lineno)
        label = "Answer" if self.arguments[0].startswith("Answer") else "Predict"
        summary = html(
            "summary",
            html("span", label, classes=["course-label"]),
            html("span", *question, classes=["course-question"]),
            html("span", "Show the answer", classes=["course-ask"]),
        )
        answer = html("div", *self.parse_content_to_nodes(), classes=["course-answer"])
        return [html("details", summary, answer, classes=["course-box", "course-predict"])]


class OpenNotebook(SphinxDirective):
    """A button into JupyterLab where ``multigpu start`` serves the page, else how to start it."""

    required_arguments = 1

    def run(self):
        return [open_in_lab(self.arguments[0], f"Open {self.arguments[0]} in JupyterLab")]


def open_in_lab(name, words):
    """The button for ``notebooks/<name>``, and what to do where no lab answers.

    The button is hidden in the page and shown by our script when the page came over HTTP: from
    ``file://`` there is no lab to open.
    """
    button = html(
        "a",
        words,
        classes=["course-button"],
        href=f"/lab/tree/notebooks/{name}",
        target="_blank",  # the page stays where it is, beside the notebook
        hidden="",
        data_open_notebook="",
    )
    how = html(
        "p",
        "This lesson is also a notebook: type " if "/" in name else "To work in it, type ",
        html("code", "make start"),
        " in the folder of the course, and open ",
        html("code", f"notebooks/{name}"),
        " in JupyterLab.",
        data_how_to_start="",
    )
    return html("div", button, how, classes=["course-open"])


def setup(app):
    app.add_directive("overview", Overview)
    app.add_directive("keypoints", KeyPoints)
    app.add_directive("surprise", Surprise)
    app.add_directive("predict", Predict)
    app.add_directive("open-notebook", OpenNotebook)
