"""The box at the end of every lesson, notebook and page of exercises: what comes next."""

from docutils import nodes

from course import times
from course.element import html, text
from course.way import FOLDERS, Way, belonging, joined, said, typed
from multigpu.checking.lessons import LESSONS, as_lessons, lessons_with


class what_next(nodes.General, nodes.Element):
    """The box, before all pages have been read."""


def end_of(way):
    """The box at the end of a lesson, a notebook or a page of exercises."""
    here = belonging(way.docname)
    steps = html("ol", classes=["course-steps"])
    for label, *words in steps_after(way, here):
        said = [text(word) if isinstance(word, str) else word for word in words]
        steps += html("li", html("strong", text(label)), html("span", *said))
    label = html("p", text("What next"), classes=["course-label"])
    end = html("p", text("Lost? See "), way.page("map"), text("."), classes=["course-more"])
    return html(
        "nav", label, steps, end, classes=["course-box", "course-next"], aria_label="What next"
    )


def steps_after(way, here):
    folder = way.docname.partition("/")[0]
    if folder == "exercises":
        for lesson in here:
            yield f"Lesson {lesson.number}", way.lesson(lesson), " explains them."
    if folder == "lessons" and here[0].notebook:
        yield notebook_step(way, here[0])
    names = tuple(name for lesson in here for name in lesson.exercises)
    if folder != "exercises" and names:
        linked = joined([way.exercise(name) for name in names])
        minutes = said(times.of_exercises(names))
        yield "Exercises", *linked, f": about {minutes}. Type ", typed(), "."
    yield next_lesson(way, here[-1])


def notebook_step(way, lesson):
    both = lessons_with(notebook=lesson.notebook)
    begin = "" if len(both) == 1 else "begin " if lesson == both[0] else "finish "
    goes = "" if len(both) == 1 else f" It goes with {as_lessons(both)}."
    minutes = said(times.of_notebook(lesson.notebook))
    return "Notebook", begin, way.notebook(lesson.notebook), f": about {minutes} in all.{goes}"


def next_lesson(way, lesson):
    if lesson == LESSONS[-1]:
        return (
            "The end",
            "That was the last lesson. ",
            typed("multigpu list"),
            " shows what is left.",
        )
    after = LESSONS[lesson.number]
    return f"Lesson {after.number}", way.lesson(after), f": {way.reading(after)} min to read."


def add_end(app, doctree):
    docname = app.env.docname
    if docname.startswith(FOLDERS) and belonging(docname):
        next(doctree.findall(nodes.section)).append(what_next(""))


def fill(app, doctree, docname):
    for place in list(doctree.findall(what_next)):
        place.replace_self(end_of(Way(app, docname)))


def setup(app):
    app.add_node(what_next)
    app.connect("doctree-read", add_end, priority=950)  # its words are not counted
    app.connect("doctree-resolved", fill)
