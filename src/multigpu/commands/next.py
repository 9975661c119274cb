"""``multigpu next``: the task of the next exercise, where to write it and how to check it."""

import argparse

from rich.text import Text

from multigpu.commands.desk import Desk, add_name
from multigpu.commands.showing import console, heading, indented


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
    out.print(indented(f"{exercise.signature.text}\n\n{exercise.task}"))
    out.print()
    for label, text in (
        ("write it in", desk.place(exercise)),
        ("check it with", f"multigpu check {exercise.name}"),
        ("if you are stuck", f"multigpu hint {exercise.name}"),
    ):
        out.print(Text(f"{label:<17}", "cyan") + Text(text))
    return 0
