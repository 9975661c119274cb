"""``multigpu watch``: check again whenever a file is saved, until Ctrl-C."""

import argparse
import time
from pathlib import Path

from multigpu.checking.learner import WarmServer
from multigpu.checking.session import check_with
from multigpu.commands.check import show, until_one_fails
from multigpu.commands.desk import Desk
from multigpu.commands.showing import console

PAUSE = 0.25  # seconds between two looks at the files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu watch``."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="what to check (default: the first exercise that does not pass yet)",
    )


def run(options: argparse.Namespace) -> int:
    """Check, wait for a change, check again."""
    desk, out = Desk.here(), console()
    names, own = options.names, desk.course.exercises
    exercises = desk.catalog.find_all(names)
    with WarmServer() as server:
        while True:
            seen, sources = stamps(own), desk.progress.sources()
            if names:
                verdicts = check_with(server, exercises, desk.course, submission=own)
            else:
                verdicts = list(until_one_fails(desk.to_do(), desk, server, own, own=True))
            desk.progress.note(verdicts, sources)
            show(verdicts, desk, own, own=True)
            out.print(
                f"{time.strftime('%H:%M:%S')}  waiting for you to save (Ctrl-C ends)", style="dim"
            )
            wait_for_change(own, seen)


def wait_for_change(folder: Path, seen: dict[Path, tuple[int, int]]) -> None:
    """Return when a file has changed and is quiet again: editors write in several steps."""
    while stamps(folder) == seen:
        time.sleep(PAUSE)
    changed: dict[Path, tuple[int, int]] = {}
    while changed != (changed := stamps(folder)):
        time.sleep(PAUSE / 2)


def stamps(folder: Path) -> dict[Path, tuple[int, int]]:
    """Time and size of every exercise file."""
    found = {}
    for path in folder.glob("*.py"):
        try:
            status = path.stat()
        except OSError:  # an editor is just replacing it
            continue
        found[path] = (status.st_mtime_ns, status.st_size)
    return found
