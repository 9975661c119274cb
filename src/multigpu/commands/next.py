"""``multigpu next``: the task of the next exercise, where to write it and how to check it."""

import argparse
import os

from rich.text import Text

from multigpu.checking.catalog import Lesson, as_lessons, lessons_with
from multigpu.commands.desk import Desk, add_name
from multigpu.commands.showing import console, heading, indented
from multigpu.commands.site import pages


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu next``."""
    add_name(parser)


def run(options: argparse.Namespace) -> int:
    """Show the task."""
    desk, out = Desk.here(), console()
    exercise = desk.chosen(options.name)
    if exercise is None:
        of = f" of {options.name}" if options.name not in (None, "all") else ""
        out.print(f"All exercises{of} are done. Congratulations!")
        return 0
    out.print(heading(exercise.name, exercise.chapter.title))
    out.print()
    task = exercise.task.partition("\nLesson: ")[0]  # the lesson is named below
    out.print(indented(f"{exercise.signature.text}\n\n{task}"))
    out.print()
    for lesson in lessons_with(exercise=exercise.name):  # none while an author is at work
        out.print(row("read before", f"{as_lessons([lesson])}, {lesson.title}"))
        out.print(row("on the page", page_of(lesson, desk)))
    for label, text in (
        ("write it in", desk.place(exercise)),
        ("check it with", f"multigpu check {exercise.name}"),
        ("if you are stuck", f"multigpu hint {exercise.name}"),
    ):
        out.print(row(label, text))
    return 0


def row(label: str, text: str) -> Text:
    """A label and what it stands for."""
    return Text(f"{label:<17}", "cyan") + Text(text)


def page_of(lesson: Lesson, desk: Desk) -> str:
    """The built page of a lesson, or its text while there is no such page."""
    root = desk.course.root
    page = pages(root) / "lessons" / f"{lesson.page}.html"
    return os.path.relpath(page if page.is_file() else root / f"docs/lessons/{lesson.page}.rst")
