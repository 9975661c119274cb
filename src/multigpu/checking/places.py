"""Where the course lies on this disk: a folder with ``exercises``, ``solutions`` and ``tests``."""

from dataclasses import dataclass
from pathlib import Path


class CourseNotFound(Exception):
    """The command was started outside the course's folder."""


@dataclass(frozen=True)
class Course:
    """The folders of one copy of the course."""

    root: Path

    @property
    def exercises(self) -> Path:
        """The learner's files."""
        return self.root / "exercises"

    @property
    def solutions(self) -> Path:
        """The reference answers: the same modules with the same signatures."""
        return self.root / "solutions"

    def broken(self, module: str) -> Path:
        """The starter of a module whose exercises are broken code to mend; most have none."""
        return self.solutions / "broken" / f"{module}.py"

    @property
    def checks(self) -> Path:
        """The pytest files that check a submission."""
        return self.root / "tests" / "exercises"

    @property
    def hints(self) -> Path:
        """One toml file per module, three hints per exercise."""
        return self.exercises / "hints"

    @property
    def state(self) -> Path:
        """What the command remembers between two runs.  Safe to delete."""
        return self.root / ".multigpu"

    def check_file(self, module: str, function: str) -> Path:
        """The pytest file with all checks of one exercise."""
        return self.checks / module / f"test_{function}.py"


def find_course(start: Path) -> Course:
    """The course that ``start`` lies in: the nearest folder upwards that looks like it.

    Raises CourseNotFound when there is none.
    """
    for folder in (start, *start.parents):
        course = Course(folder)
        if course.solutions.is_dir() and course.checks.is_dir():
            return course
    raise CourseNotFound(
        f"{start} is not inside the course's folder (the one with exercises/ and solutions/). "
        "Go there with cd and try again."
    )
