"""``multigpu solution``: the reference answer, once yours passes."""

import argparse

from rich.syntax import Syntax
from rich.text import Text

from multigpu.checking.starters import definitions, text_of
from multigpu.commands.desk import Desk
from multigpu.commands.showing import console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu solution``."""
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--peek", action="store_true", help="show it before yours passes")


def run(options: argparse.Namespace) -> int:
    """Show the reference answer, or say what it takes to see it."""
    desk, out = Desk.here(), console()
    exercise = desk.catalog.one(options.name)
    if not options.peek and desk.progress.state(exercise) != "pass":
        out.print(
            f"{exercise.name} does not pass yet. Check it with `multigpu check {exercise.name}`, "
            "or add --peek to look all the same."
        )
        return 1
    source = (desk.course.solutions / exercise.file).read_text(encoding="utf-8")
    code = text_of(source, definitions(source)[exercise.function])
    out.print(Text(f"solutions/{exercise.file}", "dim"))
    if out.is_terminal and not out.no_color:
        out.print(Syntax(code, "python", theme="ansi_dark", background_color="default"))
    else:
        out.print(Text(code))
    return 0
