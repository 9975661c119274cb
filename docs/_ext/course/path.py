"""``.. course-path::``: all lessons in their order, with the times that the build counted."""

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from course import times
from course.element import html, text
from course.way import Way, said
from multigpu.checking.lessons import LESSONS, NOTEBOOKS, PARTS


class path(nodes.General, nodes.Element):
    """The list of lessons, before all lessons have been read."""


class CoursePath(SphinxDirective):
    def run(self):
        return [path("")]


def all_lessons(way):
    """The lessons in their parts, with times, and how long all of it takes."""
    listing = html("div", classes=["course-path"])
    for part in PARTS:
        rows = html("ol", start=str(part.lessons[0].number))
        for lesson in part.lessons:
            number = html("span", text(str(lesson.number)), classes=["course-number"])
            rows += html(
                "li", number, way.lesson(lesson), html("span", text(parts_said(way, lesson)))
            )
        listing += [html("p", text(part.title), classes=["course-lead"]), rows]
    reading = sum(way.reading(lesson) for lesson in LESSONS)
    working = sum(times.of_notebook(name) for name in NOTEBOOKS)
    writing = sum(times.of_exercises(lesson.exercises) for lesson in LESSONS)
    read, work, write = (f"{minutes / 60:.0f}" for minutes in (reading, working, writing))
    total = f"Together about {(reading + working + writing) / 60:.0f} hours: {read} to read, "
    total += f"{work} in the notebooks, {write} for the exercises. "
    return html("div", listing, html("p", text(total), way.page("map", "how-long", "How we count")))


def parts_said(way, lesson):
    parts = [f"{way.reading(lesson)} min to read"]
    if lesson.exercises:
        parts.append(f"exercises {said(times.of_exercises(lesson.exercises))}")
    return ", ".join(parts)


def fill(app, doctree, docname):
    for place in list(doctree.findall(path)):
        place.replace_self(all_lessons(Way(app, docname)))


def setup(app):
    app.add_node(path)
    app.add_directive("course-path", CoursePath)
    app.connect("doctree-resolved", fill)
