"""The pages, the README and the command agree on the course's order and names.

The list is ``multigpu.checking.lessons``; everything that people read is compared with it.
"""

import re
import sys
from pathlib import Path

import nbformat
import pytest

from multigpu.checking.catalog import Catalog, Course
from multigpu.checking.lessons import LESSONS, NOTEBOOKS, Lesson, lessons_with

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "_ext"))

from course import times, way  # noqa: E402 (found through sys.path)

lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.page)


def listed(page: str) -> list[str]:
    """The pages in the table of contents of ``page``."""
    table = re.search(r"\.\. toctree::\n(?:   :.*\n)*\n((?:   .+\n)+)", (DOCS / page).read_text())
    assert table is not None
    return [line.split("/")[-1] for line in table[1].split()]


def heading(page: Path) -> str:
    found = re.search(r"^(.+)\n={3,}$", page.read_text(), re.M)
    assert found is not None
    return found[1].replace("``", "")


def test_the_site_lists_lessons_notebooks_and_exercises_in_the_order_of_the_way() -> None:
    assert listed("lessons/index.rst") == [lesson.page for lesson in LESSONS]
    assert listed("notebooks.rst") == list(NOTEBOOKS)
    assert listed("exercises/index.rst") == [
        chapter.module for chapter in Catalog(Course(ROOT)).chapters
    ]


def test_the_command_goes_through_the_exercises_in_the_order_of_the_lessons() -> None:
    in_lessons = [name for lesson in LESSONS for name in lesson.exercises]
    assert in_lessons == [exercise.name for exercise in Catalog(Course(ROOT)).exercises]


def test_pages_bear_the_names_that_the_command_shows() -> None:
    for lesson in LESSONS:
        assert heading(DOCS / "lessons" / f"{lesson.page}.rst") == lesson.title
    for chapter in Catalog(Course(ROOT)).chapters:
        assert heading(DOCS / "exercises" / f"{chapter.module}.rst") == chapter.title


def test_a_lesson_needs_only_lessons_before_it() -> None:
    for number, lesson in enumerate(LESSONS):
        assert set(lesson.needs) <= {before.page for before in LESSONS[:number]}


@lesson
def test_a_lesson_shows_its_own_exercises_and_its_notebook(lesson: Lesson) -> None:
    page = (DOCS / "lessons" / f"{lesson.page}.rst").read_text()
    assert tuple(re.findall(r"^\.\. exercise:: (\S+)$", page, re.M)) == lesson.exercises
    opened = set(re.findall(r"^\.\. open-notebook:: (\w+)\.ipynb$", page, re.M))
    assert opened == ({lesson.notebook} if lesson.notebook else set())


def test_the_task_of_an_exercise_names_its_lesson() -> None:
    for exercise in Catalog(Course(ROOT)).exercises:
        named = re.findall(r"docs/lessons/(\w+)", exercise.task)
        assert named == [lesson.page for lesson in lessons_with(exercise=exercise.name)]


def test_the_readme_has_the_way_as_a_table() -> None:
    rows = re.findall(
        r"^\| (\d+) \| (.+) \| (.*) \| (.*) \|$", (ROOT / "README.md").read_text(), re.M
    )
    expected = []
    for lesson in LESSONS:
        files = dict.fromkeys(name.partition(".")[0] + ".py" for name in lesson.exercises)
        expected.append((str(lesson.number), lesson.title, lesson.notebook or "", ", ".join(files)))
    assert [tuple(cell.replace("`", "").strip() for cell in row) for row in rows] == expected


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_says_the_time_that_the_site_says(name: str) -> None:
    opening = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells[0].source
    assert re.findall(r"\*\*Time:\*\*\D*(\d+)", opening) == [str(times.of_notebook(name))]


def test_what_two_exercises_share_is_counted_once() -> None:
    both = ("sharding.Zero1Optimizer", "sharding.Zero2Optimizer")
    assert times.of_exercises(both) < sum(times.of_exercises((name,)) for name in both)
    assert times.of_exercises(()) == 0


def test_no_two_lines_of_the_map_lie_on_each_other() -> None:
    found = way.tracks_of(LESSONS)
    assert len(found.lanes) == len(LESSONS)
    for track in found.tracks:
        others = [other for other in found.tracks if other != track and other.lane == track.lane]
        assert all(other.end <= track.start or track.end <= other.start for other in others)
        between = range(track.start + 1, track.end)
        assert track.lane not in [found.lanes[row] for row in between]
