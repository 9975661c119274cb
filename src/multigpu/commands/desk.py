"""What every sub-command about exercises starts from: the course, the catalog, the progress."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from multigpu.checking.catalog import Catalog, Course, Exercise, find_course
from multigpu.checking.yours import Progress


@dataclass(frozen=True)
class Desk:
    """The learner's desk in the course that the current folder belongs to."""

    course: Course
    catalog: Catalog
    progress: Progress

    @classmethod
    def here(cls) -> "Desk":
        """Raises CourseNotFound outside the course's folder."""
        course = find_course(Path.cwd())
        return cls(course, Catalog(course), Progress(course))

    def to_do(self) -> list[Exercise]:
        """The exercises that have no verdict ``pass`` on their present code."""
        return [e for e in self.catalog.exercises if self.progress.state(e) != "pass"]

    def chosen(self, name: str | None) -> Exercise | None:
        """The exercise of this name, else the next one; None when all are done.

        The name of a file means the first exercise in it that is not done.
        """
        named = self.catalog.exercises if name is None else self.catalog.find(name)
        if name is not None and len(named) == 1:
            return named[0]
        return next((exercise for exercise in self.to_do() if exercise in named), None)

    def file(self, exercise: Exercise) -> Path:
        """The learner's file."""
        return self.course.exercises / exercise.file

    def place(self, exercise: Exercise) -> str:
        """``exercises/data_parallel.py``, as seen from the current folder."""
        path = self.file(exercise)
        here = Path.cwd()
        return str(path.relative_to(here) if path.is_relative_to(here) else path)


def add_name(parser: argparse.ArgumentParser) -> None:
    """The argument of the sub-commands that are about one exercise."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="for example split; of a file (collectives) the first exercise that is not done; "
        "default: the next exercise",
    )
