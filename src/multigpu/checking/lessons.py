"""The lessons in the order in which they are meant to be read, with their exercises and notebooks.

They are listed in ``lessons.toml``.  The command and the site take the order from here.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final


@dataclass(frozen=True)
class Lesson:
    """One page of ``docs/lessons``, with what belongs to it."""

    page: str
    title: str
    needs: tuple[str, ...] = ()  # the pages of the lessons that it builds on
    notebook: str | None = None  # one notebook may go with two lessons
    exercises: tuple[str, ...] = ()  # each exercise belongs to one lesson

    @property
    def number(self) -> int:
        """Its place on the way, from 1."""
        return LESSONS.index(self) + 1


@dataclass(frozen=True)
class Part:
    """Lessons about one question."""

    title: str
    lessons: tuple[Lesson, ...]


def _lesson(fields: dict[str, Any]) -> Lesson:
    own: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return Lesson(**own)


_TEXT = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
PARTS: Final = tuple(
    Part(part["title"], tuple(map(_lesson, part["lessons"])))
    for part in tomllib.loads(_TEXT)["parts"]
)
LESSONS: Final = tuple(lesson for part in PARTS for lesson in part.lessons)
NOTEBOOKS: Final = tuple(
    dict.fromkeys(lesson.notebook for lesson in LESSONS if lesson.notebook is not None)
)


def lessons_with(*, notebook: str | None = None, exercise: str | None = None) -> list[Lesson]:
    """The lessons that a notebook (``multi_GPU``) or an exercise (``hangs.early_stop``) is for.

    An exercise module's name (``hangs``) gives the lessons of all its exercises.
    """
    return [
        lesson
        for lesson in LESSONS
        if (notebook is not None and lesson.notebook == notebook)
        or any(exercise in (name, name.partition(".")[0]) for name in lesson.exercises)
    ]


def as_lessons(lessons: list[Lesson]) -> str:
    """``lesson 3`` or ``lessons 6 to 9``; the numbers of a run of lessons."""
    first, last = lessons[0].number, lessons[-1].number
    if first == last:
        return f"lesson {first}"
    return f"lessons {first} {'and' if last == first + 1 else 'to'} {last}"
