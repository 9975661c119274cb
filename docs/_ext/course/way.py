"""What pages of the way need to know: links, times, and which lessons they belong to.

Order, names and numbers come from :mod:`multigpu.checking.lessons`, times from :mod:`course.times`.
"""

from course import times
from course.element import element, html, text
from course.starters import find
from multigpu.checking.lessons import LESSONS, lessons_with

FOLDERS = "lessons/", "_notebooks/", "exercises/"


class Way:
    """Links and times as the page ``docname`` needs them, when all pages have been read."""

    def __init__(self, app, docname):
        self.app, self.docname = app, docname

    def page(self, name, anchor="", words=None):
        """A link to another page; its title, unless other ``words`` are given."""
        target = self.app.builder.get_relative_uri(self.docname, name)
        title = [text(words)] if words else self.app.env.titles[name].deepcopy().children
        return html("a", *title, href=target + (f"#{anchor}" if anchor else ""))

    def lesson(self, lesson):
        return self.page(f"lessons/{lesson.page}")

    def notebook(self, name):
        return self.page(f"_notebooks/{name}", words=f"{name}.ipynb")

    def exercise(self, name):
        exercise = find(name)
        place = self.page(f"exercises/{exercise.module}", exercise.anchor, exercise.function)
        return html("code", place)

    def reading(self, lesson):
        return times.rounded(self.app.env.course_reading.get(f"lessons/{lesson.page}", 0))


def lesson_of(docname):
    return next((lesson for lesson in LESSONS if docname == f"lessons/{lesson.page}"), None)


def belonging(docname):
    """The lessons that a page is, or belongs to."""
    folder, _, name = docname.rpartition("/")
    if folder == "_notebooks":
        return lessons_with(notebook=name)
    if folder == "exercises":
        return lessons_with(exercise=name)
    return [lesson_of(docname)] if lesson_of(docname) else []


def typed(words="multigpu next"):
    return html("code", text(words), classes=["literal"])


def joined(links):
    """Links with commas between them."""
    parts = [part for link in links for part in (link, text(", "))]
    return parts[:-1]


def said(minutes):
    """Minutes as people say them: ``45 min``, ``2 h``, ``3½ h``."""
    if minutes < 90:
        return f"{minutes} min"
    halves = round(minutes / 30)
    return f"{halves // 2}{'½' if halves % 2 else ''} h"


def note_reading(app, doctree):
    """Remember how long a page takes to read, and say it in its overview."""
    docname = app.env.docname
    if not docname.startswith(FOLDERS) or not belonging(docname):
        return
    minutes = times.of_page(doctree)
    app.env.course_reading[docname] = minutes
    for place in doctree.findall(element):
        if "course-reading-time" in place["classes"]:
            place += text(f"{times.rounded(minutes)} min")


def prepare(app):
    if not hasattr(app.env, "course_reading"):
        app.env.course_reading, app.env.course_shown = {}, None


def forget(app, env, docname):
    env.course_reading.pop(docname, None)


def merge(app, env, docnames, other):
    env.course_reading.update(
        {name: minutes for name, minutes in other.course_reading.items() if name in docnames}
    )


def changed_pages(app, env):
    """All pages of the way are written again when a title or a time has changed."""
    pages = [page for page in ("index", "map", *env.course_reading) if page in env.found_docs]
    shown = {
        name: (times.rounded(minutes), env.titles[name].astext())
        for name, minutes in env.course_reading.items()
    }
    before, env.course_shown = env.course_shown, shown
    return pages if shown != before else []


def setup(app):
    app.connect("builder-inited", prepare)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    app.connect("doctree-read", note_reading, priority=900)  # when the cells have run
    app.connect("env-updated", changed_pages)
