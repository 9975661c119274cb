"""``multigpu check``: run the checks of some exercises and explain what is wrong."""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from multigpu.checking.catalog import Exercise
from multigpu.checking.learner import WarmServer
from multigpu.checking.session import check_with
from multigpu.checking.verdicts import Verdict, exit_code
from multigpu.commands.desk import Desk

ALL_DONE = "All exercises are done. Run the notebooks again: now every part of them says yours."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu check``."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="data_parallel.split, split, data_parallel (all of a module) or all; "
        "default: the first exercise that does not pass yet",
    )
    parser.add_argument(
        "--submission", metavar="DIR", type=Path, help="the folder to check (default: exercises)"
    )
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON only")


def run(options: argparse.Namespace) -> int:
    """Check, show, remember.  Returns the exit code."""
    desk = Desk.here()
    submission = options.submission or desk.course.exercises
    own = submission.resolve() == desk.course.exercises.resolve()
    exercises, sources = desk.catalog.find_all(options.names), desk.progress.sources()
    with WarmServer() as server, waiting_sign(options.json):
        if options.names:
            verdicts = check_with(server, exercises, desk.course, submission=submission)
        else:
            to_do = desk.to_do() if own else desk.catalog.exercises
            verdicts = list(until_one_fails(to_do, desk, server, submission, own=own))
    if own:
        desk.progress.note(verdicts, sources)
    if options.json:
        print(json.dumps([verdict.record() for verdict in verdicts], indent=2))
    else:
        show(verdicts, desk, submission, own=own)
    return exit_code(verdicts)


@contextlib.contextmanager
def waiting_sign(quiet: bool) -> Iterator[None]:
    """Something that moves while the checks run, in a terminal only."""
    from multigpu.commands.showing import console  # while the server imports torch

    if quiet or not console().is_terminal:
        yield
        return
    # pytest takes what is printed away from file descriptor 1, so the sign has one of its own.
    own = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding=sys.stdout.encoding)
    with own, console(own).status("checking"):
        yield


def until_one_fails(
    exercises: Sequence[Exercise],
    desk: Desk,
    server: WarmServer,
    submission: Path,
    *,
    own: bool,
) -> Iterator[Verdict]:
    """The verdicts up to and including the first that is no pass.

    In one's own folder what is not begun is left out after a pass: it is the next task, and no
    mistake.  What others hand in is to be whole.
    """
    for number, exercise in enumerate(exercises):
        (verdict,) = check_with(server, [exercise], desk.course, submission=submission)
        if own and number and verdict.status == "not_started":
            return
        yield verdict
        if verdict.status != "pass":
            return


def show(verdicts: Sequence[Verdict], desk: Desk, submission: Path, *, own: bool) -> None:
    """The verdicts and, below them, what to do next."""
    from multigpu.commands.showing import console, show_verdicts
    from multigpu.commands.site import pages

    out, messages = console(), pages(desk.course.root) / "troubleshooting.html"
    show_verdicts(verdicts, out, folder=submission, messages=messages)
    failed = [verdict for verdict in verdicts if verdict.status != "pass"]
    if not verdicts:  # all have passed before
        out.print(ALL_DONE, style="dim")
    elif not failed and own:
        for line in what_next(verdicts[-1], desk):
            out.print(line, style="dim")
    elif not failed:
        return
    elif failed[0].status == "checker_fault":
        out.print("This is a fault of the checker and not yours. Please report it.")
    elif failed[0].status == "not_started":
        out.print(f"read the task: multigpu next {not_begun(failed[0], desk)}", style="dim")
    else:
        out.print(f"stuck? multigpu hint {at_fault(failed[0], desk)}", style="dim")


def what_next(verdict: Verdict, desk: Desk) -> Iterator[str]:
    """What to do after a pass: first what is still open in the same file."""
    to_do = desk.to_do()
    module = verdict.exercise.partition(".")[0]
    same_file = [exercise for exercise in to_do if exercise.chapter.module == module]
    if not same_file:
        (passed,) = desk.catalog.find(verdict.exercise)
        yield f"{passed.file} is done. See it at work: python {desk.place(passed)}"
    if to_do:
        next_one = (same_file or to_do)[0]
        only_way = next_one == to_do[0]  # the bare command goes there, too
        yield f"next: {next_one.name} (multigpu next{'' if only_way else f' {next_one.name}'})"
    else:
        yield ALL_DONE


def not_begun(verdict: Verdict, desk: Desk) -> str:
    """The exercise that is not written yet: the one asked for, or one that it calls.

    Two files may have a function of the same name: the one beside the caller is meant.
    """
    module = verdict.exercise.partition(".")[0]
    named = [e for e in desk.catalog.exercises if e.function == verdict.unwritten]
    named.sort(key=lambda exercise: exercise.chapter.module != module)
    return named[0].name if named else verdict.exercise


def at_fault(verdict: Verdict, desk: Desk) -> str:
    """The exercise whose hint helps.

    Two that work together are checked together, and the message id names the one at fault.
    """
    module = verdict.exercise.partition(".")[0]
    named = f"{module}.{(verdict.message_id or '').partition('.')[0]}"
    exercises = [exercise.name for exercise in desk.catalog.exercises]
    return named if named in exercises else verdict.exercise
