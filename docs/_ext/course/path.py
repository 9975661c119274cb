"""``.. course-path::``: the lessons in order, with the times that their own overviews name."""

import re

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from course.element import html, text

logger = logging.getLogger(__name__)
LESSONS = "lessons/index"


class path(nodes.General, nodes.Element):
    """The list of lessons, before all lessons have been read."""


class CoursePath(SphinxDirective):
    def run(self):
        return [path("")]


def note_overview(env, options):
    """Remember the times of the lesson that is being read; called by its overview box."""
    env.course_overviews[env.docname] = {"reading": 0, "exercises": 0} | {
        name: minutes(options[name]) for name in ("reading", "exercises") if name in options
    }


def minutes(words):
    """The minutes in ``20 min``."""
    found = re.search(r"\d+", words)
    return int(found[0]) if found else 0


def fill(app, doctree, docname):
    for place in doctree.findall(path):
        place.replace_self(shown(app, docname))


def shown(app, docname):
    env = app.env
    lessons = [
        name for name in env.toctree_includes.get(LESSONS, []) if name in env.course_overviews
    ]
    listing, together = html("ol", classes=["course-path"]), {"reading": 0, "exercises": 0}
    for lesson in lessons:
        times = env.course_overviews[lesson]
        together = {kind: together[kind] + times[kind] for kind in together}
        target = app.builder.get_relative_uri(docname, lesson)
        title = env.titles[lesson].deepcopy().children
        listing += html("li", html("a", *title, href=target), html("span", text(said(times))))
    hours = sum(together.values()) / 60
    total = f"Together about {hours:.0f} hours: {said(together)}."
    return html("div", listing, html("p", text(total)))


def said(times):
    return f"{times['reading']} min to read, {times['exercises']} min of exercises"


def prepare(app):
    if not hasattr(app.env, "course_overviews"):
        app.env.course_overviews = {}


def forget(app, env, docname):
    env.course_overviews.pop(docname, None)


def merge(app, env, docnames, other):
    env.course_overviews.update(
        {name: times for name, times in other.course_overviews.items() if name in docnames}
    )


def changed_paths(app, env):
    """The page with the list is written again whenever a lesson was read again."""
    return ["index"]


def setup(app):
    app.add_node(path)
    app.add_directive("course-path", CoursePath)
    app.connect("builder-inited", prepare)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    app.connect("env-updated", changed_paths)
    app.connect("doctree-resolved", fill)
