"""``multigpu hint``: three hints per exercise, from a nudge to nearly the answer."""

import argparse
import tomllib

from multigpu.checking.catalog import Course, Exercise
from multigpu.commands.desk import Desk, add_name
from multigpu.commands.showing import console, heading, indented


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu hint``."""
    add_name(parser)
    parser.add_argument("--more", action="store_true", help="the next one")


def run(options: argparse.Namespace) -> int:
    """Show the hints that were shown before, the first at least; ``--more`` shows the next one."""
    desk, out = Desk.here(), console()
    exercise = desk.chosen(options.name)
    if exercise is None:
        of = f" of {options.name}" if options.name not in (None, "all") else ""
        out.print(f"All exercises{of} are done.")
        return 0
    hints = hints_for(exercise, desk.course)
    if not hints:
        out.print(f"There are no hints for {exercise.name}.")
        return 1
    number = min(max(1, desk.progress.hints_shown(exercise) + options.more), len(hints))
    desk.progress.note_hints(exercise, number)
    first = number if options.more else 1
    for position, hint in enumerate(hints[first - 1 : number], start=first):
        out.print(heading(exercise.name, f"hint {position} of {len(hints)}"))
        out.print()
        out.print(indented(hint))
        out.print()
    if number < len(hints):
        out.print(f"more: multigpu hint {exercise.name} --more", style="dim")
    else:
        out.print(f"the answer: multigpu solution {exercise.name} --peek", style="dim")
    return 0


def hints_for(exercise: Exercise, course: Course) -> list[str]:
    """The hints of an exercise, the mildest first."""
    path = course.hints / f"{exercise.chapter.module}.toml"
    if not path.is_file():
        return []
    sections = tomllib.loads(path.read_text(encoding="utf-8"))
    return list(sections.get(exercise.function, {}).get("hints", []))
