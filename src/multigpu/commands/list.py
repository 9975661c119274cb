"""``multigpu list``: all exercises, and what is done."""

import argparse
from itertools import groupby

from rich.text import Text

from multigpu.commands.desk import Desk
from multigpu.commands.showing import console, heading, mark

MARKS = {"pass": "pass", "failed": "wrong", "written": "not_started", "starter": None}
WORDS = {
    "pass": "done",
    "failed": "does not pass yet",
    "written": "not checked as it is now",
    "starter": "",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``multigpu list`` takes no options."""


def run(options: argparse.Namespace) -> int:
    """Show every exercise on a line."""
    desk, out = Desk.here(), console()
    states = {exercise: desk.progress.state(exercise) for exercise in desk.catalog.exercises}
    for chapter, exercises in groupby(states, key=lambda exercise: exercise.chapter):
        out.print(heading(chapter.title, f"exercises/{chapter.module}.py"))
        for exercise in exercises:
            sign, word = MARKS[states[exercise]], WORDS[states[exercise]]
            line = Text.assemble("  ", mark(sign) if sign else " ", f" {exercise.function:<16}")
            out.print(line + Text(f"{word}: " if word else "") + Text(exercise.summary, "dim"))
    done = sum(state == "pass" for state in states.values())
    out.print(f"\n{done} of {len(states)} done")
    return 0
