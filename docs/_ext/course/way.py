"""The way through the course, on the pages: its list, its map, and what comes next.

    .. course-path::      all lessons in their order, with the times that the build counted
    .. course-map::       a line with a stop for each lesson

Every lesson, notebook and page of exercises ends in a box that says what comes next. Order, names
and numbers come from :mod:`multigpu.checking.lessons`, times from :mod:`course.times`.
"""

from dataclasses import dataclass, field

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from course import times
from course.element import box, element, html, raw
from course.exercises import anchor_of, find
from multigpu.checking.lessons import LESSONS, NOTEBOOKS, PARTS, as_lessons, lessons_with

FOLDERS = "lessons/", "_notebooks/", "exercises/"


class Way:
    """Links and times as the page ``docname`` needs them, when all pages have been read."""

    def __init__(self, app, docname):
        self.app, self.docname = app, docname

    def page(self, name, anchor="", words=None):
        """A link to another page; its title, unless other ``words`` are given."""
        target = self.app.builder.get_relative_uri(self.docname, name)
        title = [words] if words else self.app.env.titles[name].deepcopy().children
        return html("a", *title, href=target + (f"#{anchor}" if anchor else ""))

    def lesson(self, lesson):
        return self.page(f"lessons/{lesson.page}")

    def notebook(self, name):
        return self.page(f"_notebooks/{name}", words=f"{name}.ipynb")

    def exercise(self, name):
        exercise = find(name)
        page, anchor = f"exercises/{exercise.chapter.module}", anchor_of(exercise)
        return html("code", self.page(page, anchor, exercise.function))

    def reading(self, lesson):
        return times.rounded(minutes_of(self.app.env, f"lessons/{lesson.page}"))


def lesson_of(docname):
    return next((lesson for lesson in LESSONS if docname == f"lessons/{lesson.page}"), None)


def lessons_of(docname):
    """The lessons that a page is, or belongs to."""
    folder, _, name = docname.rpartition("/")
    if folder == "_notebooks":
        return lessons_with(notebook=name)
    if folder == "exercises":
        return lessons_with(exercise=name)
    return [lesson_of(docname)] if lesson_of(docname) else []


def said(minutes):
    """Minutes as people say them: ``45 min``, ``2 h``, ``3½ h``."""
    if minutes < 90:
        return f"{minutes} min"
    halves = round(minutes / 30)
    return f"{halves // 2}{'½' if halves % 2 else ''} h"


# --- the list of lessons, on the landing page ----------------------------------------------------


def all_lessons(way):
    """The lessons in their parts, with times, and how long all of it takes."""
    listing = html("div", classes=["course-path"])
    for part in PARTS:
        rows = html("ol", start=str(part.lessons[0].number))
        for lesson in part.lessons:
            number = html("span", str(lesson.number), classes=["course-number"])
            facts = f"{way.reading(lesson)} min to read"
            if lesson.exercises:
                facts += f", exercises {said(times.of_exercises(lesson.exercises))}"
            rows += html("li", number, way.lesson(lesson), html("span", facts))
        listing += [html("p", part.title, classes=["course-lead"]), rows]
    reading = sum(way.reading(lesson) for lesson in LESSONS)
    working = sum(times.of_notebook(name) for name in NOTEBOOKS)
    writing = sum(times.of_exercises(lesson.exercises) for lesson in LESSONS)
    hours = read, work, write = [round(minutes / 60) for minutes in (reading, working, writing)]
    total = f"Together about {sum(hours)} hours: {read} to read, "
    total += f"{work} in the notebooks, {write} for the exercises. "
    return html("div", listing, html("p", total, way.page("map", "how-long", "How we count")))


# --- the map -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Track:
    """A line from the stop in row ``start`` to the one in row ``end``, run on lane ``lane``."""

    start: int
    end: int
    lane: int


@dataclass
class Tracks:
    """Where the stops lie, and the lines between them."""

    lanes: list[int] = field(default_factory=list)  # of each stop
    tracks: list[Track] = field(default_factory=list)

    def add(self, row, needs):
        """The next stop: straight below the first lesson that it needs, or on a free lane."""
        lane = 0
        if needs:
            first, *others = needs
            lane = self.lanes[first]
            if any(t.start == first and t.lane == lane for t in self.tracks):
                lane = self.free_lane(first, row)
            self.tracks.append(Track(first, row, lane))
            self.tracks += [Track(other, row, self.lanes[other]) for other in others]
        self.lanes.append(lane)

    def free_lane(self, start, end):
        lane = 1
        while any(t.lane == lane and t.start < end and start < t.end for t in self.tracks):
            lane += 1
        return lane


def tracks_of(lessons):
    rows = {lesson.page: row for row, lesson in enumerate(lessons)}
    found = Tracks()
    for row, lesson in enumerate(lessons):
        found.add(row, [rows[page] for page in lesson.needs])
    return found


def rail(found, row):
    """The piece of all lines beside one stop; it stretches with the height of its row."""
    here, width = found.lanes[row] + 0.5, max(t.lane for t in found.tracks) + 1
    lines = []
    for track in found.tracks:
        lane = track.lane + 0.5
        if track.start < row < track.end:
            lines.append(f"M{lane} -1V101")
        elif row == track.start:
            lines.append(f"M{here} 50C{here} 85 {lane} 65 {lane} 101")
        elif row == track.end:
            lines.append(f"M{lane} -1C{lane} 35 {here} 15 {here} 50")
    return (
        f'<svg viewBox="0 0 {width} 100" preserveAspectRatio="none">'
        + "".join(f'<path d="{line}" vector-effect="non-scaling-stroke"/>' for line in lines)
        + "</svg>"
    )


def course_map(way):
    found = tracks_of(LESSONS)
    firsts = {part.lessons[0]: part.title for part in PARTS}
    stops = html("ol", classes=["course-map"], role="list")
    for row, lesson in enumerate(LESSONS):
        stops += stop(way, lesson, found, row, firsts.get(lesson))
    return stops


def stop(way, lesson, found, row, part):
    lane = f"--lane: {found.lanes[row]}"
    number = html("span", str(lesson.number), classes=["course-dot"], style=lane)
    lanes = f"--lanes: {max(found.lanes) + 1}"
    drawn = raw(rail(found, row))
    line = html("div", drawn, number, classes=["course-rail"], style=lanes, aria_hidden="true")
    label = [html("span", part, classes=["course-label"])] if part else []
    heard = html("span", f"Lesson {lesson.number}: ", classes=["course-heard"])
    name = html("p", *label, heard, way.lesson(lesson), classes=["course-stop-name"])
    numbers = [other.number for other in LESSONS if other.page in lesson.needs]
    after = f", after {' and '.join(map(str, numbers))}" if numbers else ""
    facts = html("p", f"{way.reading(lesson)} min{after}", classes=["course-stop-facts"])
    work = [
        html("li", way.exercise(exercise), classes=["course-stop-exercise"])
        for exercise in lesson.exercises
    ]
    if lesson.notebook:
        work.insert(0, html("li", way.notebook(lesson.notebook), classes=["course-stop-notebook"]))
    body = [html("div", name, facts)]
    if work:
        body.append(html("ul", *work, classes=["course-stop-work"]))
    begins = ["course-map-part"] if part else []
    return html("li", line, *body, value=str(lesson.number), classes=begins)


# --- the box at the end of a page ----------------------------------------------------------------


def what_next(way):
    steps = [
        html("li", html("strong", label), html("span", *words))
        for label, *words in steps_after(way, lessons_of(way.docname))
    ]
    steps = html("ol", *steps, classes=["course-steps"])
    end = html("p", "Lost? See ", way.page("map"), ".", classes=["course-more"])
    return box("next", "What next", steps, end, tag="nav", aria_label="What next")


def steps_after(way, here):
    folder = way.docname.partition("/")[0]
    if folder == "exercises":
        for lesson in here:
            yield f"Lesson {lesson.number}", way.lesson(lesson), " explains them."
    if folder == "lessons" and here[0].notebook:
        yield notebook_step(way, here[0])
    names = tuple(name for lesson in here for name in lesson.exercises)
    if folder != "exercises" and names:
        linked = [part for name in names for part in (way.exercise(name), ", ")]
        minutes = said(times.of_exercises(names))
        yield "Exercises", *linked[:-1], f": about {minutes}. Type ", typed("multigpu next"), "."
    yield next_lesson(way, here[-1])


def notebook_step(way, lesson):
    both = lessons_with(notebook=lesson.notebook)
    begin = "" if len(both) == 1 else "begin " if lesson == both[0] else "finish "
    goes = "" if len(both) == 1 else f" It goes with {as_lessons(both)}."
    minutes = said(times.of_notebook(lesson.notebook))
    return "Notebook", begin, way.notebook(lesson.notebook), f": about {minutes} in all.{goes}"


def next_lesson(way, lesson):
    if lesson == LESSONS[-1]:
        ends = "That was the last lesson. ", typed("multigpu list"), " shows what is left."
        return "The end", *ends
    after = LESSONS[lesson.number]
    return f"Lesson {after.number}", way.lesson(after), f": {way.reading(after)} min to read."


def typed(words):
    return html("code", words, classes=["literal"])


# --- when they are drawn -------------------------------------------------------------------------


class unwritten(nodes.General, nodes.Element):
    """The place of what is made when all pages have been read."""


MADE = {"course-path": all_lessons, "course-map": course_map, "what-next": what_next}


class OfTheWay(SphinxDirective):
    def run(self):
        return [unwritten("", what=self.name)]


def minutes_of(env, docname):
    return env.metadata.get(docname, {}).get("course_minutes", 0)


def end_page(app, doctree):
    """Remember how long a page takes to read, say it in its overview, and add the last box."""
    docname = app.env.docname
    if not docname.startswith(FOLDERS) or not lessons_of(docname):
        return
    minutes = app.env.metadata[docname]["course_minutes"] = times.of_page(doctree)
    for place in doctree.findall(element):
        if "course-reading-time" in place["classes"]:
            place += nodes.Text(f"{times.rounded(minutes)} min")
    next(doctree.findall(nodes.section)).append(unwritten("", what="what-next"))


def write_all(app, doctree, docname):
    for place in list(doctree.findall(unwritten)):
        place.replace_self(MADE[place["what"]](Way(app, docname)))


def changed_pages(app, env):
    """All pages of the way are written again when a title or a time has changed."""
    shown = {
        name: (times.rounded(minutes), env.titles[name].astext())
        for name in env.found_docs
        if (minutes := minutes_of(env, name))
    }
    before, env.course_shown = getattr(env, "course_shown", None), shown
    return list({"index", "map", *shown} & env.found_docs) if shown != before else []


def setup(app):
    app.add_node(unwritten)
    app.add_directive("course-path", OfTheWay)
    app.add_directive("course-map", OfTheWay)
    app.connect("doctree-read", end_page, priority=900)  # when the cells have run
    app.connect("doctree-resolved", write_all)
    app.connect("env-updated", changed_pages)
