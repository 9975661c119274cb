"""``multigpu list``: all exercises, and what is done."""

import argparse
from itertools import groupby

from rich.text import Text

from multigpu.checking.catalog import as_lessons, lessons_with
from multigpu.commands.desk import Desk
from multigpu.commands.showing import console, heading, mark, show_beside

MARKS = {"pass": "pass", "failed": "wrong", "written": "not_started", "starter": None}
WORDS = {
    "pass": "done",
    "failed": "does not pass yet",
    "written": "not checked as it is now",
    "starter": "",
}

NARROWEST = 15  # columns for the names of a chapter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``multigpu list`` takes no options."""


def run(options: argparse.Namespace) -> int:
    """Show every exercise on a line."""
    desk, out = Desk.here(), console()
    states = {exercise: desk.progress.state(exercise) for exercise in desk.catalog.exercises}
    for chapter, group in groupby(states, key=lambda exercise: exercise.chapter):
        exercises = list(group)
        width = max(NARROWEST, *(len(exercise.function) for exercise in exercises))
        if exercises[0] is not next(iter(states)):
            out.print()
        lessons = lessons_with(exercise=chapter.module)  # none while an author is at work
        where = [f"exercises/{chapter.module}.py", *([as_lessons(lessons)] if lessons else [])]
        out.print(heading(chapter.title, ", ".join(where)))
        for exercise in exercises:
            sign, word = MARKS[states[exercise]], WORDS[states[exercise]]
            name = f" {exercise.function:<{width}} "
            start = Text.assemble("  ", mark(sign) if sign else " ", name)
            text = Text(f"{word}: " if word else "") + Text(
                exercise.summary.replace("``", ""), "dim"
            )
            show_beside(start, text, out)
    done = sum(state == "pass" for state in states.values())
    out.print(f"\n{done} of {len(states)} done")
    if "written" in states.values():
        out.print("not checked as it is now: multigpu check NAME", style="dim")
    return 0
