"""``.. dp-stepper::``: one step of data parallelism, movement by movement."""

from sphinx.util.docutils import SphinxDirective

from course.element import html, text


class Stepper(SphinxDirective):
    def run(self):
        return [html("div", html("p", text("The stepper.")), classes=["course-stepper"])]


def setup(app):
    app.add_directive("dp-stepper", Stepper)
