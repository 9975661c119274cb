"""``multigpu reset``: put the starter back, keeping a copy of what was there."""

import argparse
import shutil
import time
from pathlib import Path

from multigpu.checking.catalog import Exercise
from multigpu.checking.source import put_back, starter_for
from multigpu.commands.desk import Desk
from multigpu.commands.showing import console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu reset``."""
    parser.add_argument("name", metavar="NAME", help="an exercise, or a module for all of its file")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(options: argparse.Namespace) -> int:
    """Ask, keep a copy, reset."""
    desk, out = Desk.here(), console()
    exercises = desk.catalog.find(options.name)
    if len({exercise.chapter for exercise in exercises}) > 1:
        out.print("Reset one module at a time.")
        return 2
    path = desk.file(exercises[0])
    whole = len(exercises) > 1 or not path.is_file()
    what = f"all of {path.name}" if whole else exercises[0].name
    if not options.yes and not confirmed(f"Reset {what}? A copy of the file is kept. [y/N] "):
        out.print("Nothing was changed.")
        return 1
    try:
        text = reset_text(desk, exercises, path, whole=whole)
    except SyntaxError as error:
        out.print(
            f"{path.name} cannot be read (line {error.lineno}: {error.msg}). Mend that line, or "
            f"reset the whole file: multigpu reset {exercises[0].chapter.module}"
        )
        return 1
    if path.is_file():
        out.print(f"kept: {keep(path, desk.course.state / 'kept')}")
    path.write_text(text, encoding="utf-8")
    out.print(f"reset: {what}")
    return 0


def reset_text(desk: Desk, exercises: tuple[Exercise, ...], path: Path, *, whole: bool) -> str:
    """What the file holds afterwards.  Raises SyntaxError when it cannot be read."""
    starter = starter_for(path.stem, desk.course)
    if whole:
        return starter
    return put_back(path.read_text(encoding="utf-8"), starter, exercises[0].function)


def confirmed(question: str) -> bool:
    """Whether the learner says yes."""
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        return False


def keep(path: Path, folder: Path) -> Path:
    """Copy a file to a name of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    number, target = 0, folder / f"{path.stem}-{stamp}.py"
    while target.exists():
        number += 1
        target = folder / f"{path.stem}-{stamp}-{number}.py"
    shutil.copy2(path, target)
    return target
