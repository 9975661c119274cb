"""``.. course-map::``: the course on one page, as a line with a stop for each lesson.

The lines are drawn from what each lesson needs: a stop hangs on the lessons that it builds on, so
one sees where the way may be left. Beside each stop stand its notebook and its exercises.
"""

from dataclasses import dataclass, field

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from course.element import html, raw, text
from course.way import Way
from multigpu.checking.lessons import LESSONS, PARTS

PITCH = 24  # pixels between two lanes


class course_map(nodes.General, nodes.Element):
    """The map, before all lessons have been read."""


class CourseMap(SphinxDirective):
    def run(self):
        return [course_map("")]


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


def drawn(way):
    found = tracks_of(LESSONS)
    firsts = {part.lessons[0]: part.title for part in PARTS}
    stops = html("ol", classes=["course-map"], role="list")
    for row, lesson in enumerate(LESSONS):
        stops += stop(way, lesson, found, row, firsts.get(lesson))
    return stops


def stop(way, lesson, found, row, part):
    left = f"left: {found.lanes[row] * PITCH}px"
    number = html("span", text(str(lesson.number)), classes=["course-dot"], style=left)
    width = f"width: {(max(found.lanes) + 1) * PITCH}px"
    line = html(
        "div",
        raw(rail(found, row)),
        number,
        classes=["course-rail"],
        style=width,
        aria_hidden="true",
    )
    said = html("span", text(f"Lesson {lesson.number}: "), classes=["course-heard"])
    name = html("p", said, way.lesson(lesson), classes=["course-stop-name"])
    if part:
        name.insert(0, html("span", text(part), classes=["course-label"]))
    facts = html("p", text(facts_of(way, lesson)), classes=["course-stop-facts"])
    work = html("ul", classes=["course-stop-work"])
    if lesson.notebook:
        work += html("li", way.notebook(lesson.notebook), classes=["course-stop-notebook"])
    for exercise in lesson.exercises:
        work += html("li", way.exercise(exercise), classes=["course-stop-exercise"])
    body = [html("div", name, facts)] + ([work] if work.children else [])
    begins = ["course-map-part"] if part else []
    return html("li", line, *body, value=str(lesson.number), classes=begins)


def facts_of(way, lesson):
    numbers = [other.number for other in LESSONS if other.page in lesson.needs]
    after = f", after {' and '.join(map(str, numbers))}" if numbers else ""
    return f"{way.reading(lesson)} min{after}"


def fill(app, doctree, docname):
    for place in list(doctree.findall(course_map)):
        place.replace_self(drawn(Way(app, docname)))


def setup(app):
    app.add_node(course_map)
    app.add_directive("course-map", CourseMap)
    app.connect("doctree-resolved", fill)
