"""``multigpu check``: run the checks of some exercises and explain what is wrong.

``multigpu watch`` does so again whenever a file is saved.
"""

import argparse
import contextlib
import json
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from multigpu.checking.catalog import Course, Exercise
from multigpu.checking.learner import WarmServer
from multigpu.checking.progress import Progress
from multigpu.checking.verdicts import Verdict, exit_code

ALL_DONE = "All exercises are done."
PAUSE = 0.25  # seconds between two looks at the files


def check_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu check``."""
    watch_options(parser)
    parser.add_argument(
        "--submission", metavar="DIR", type=Path, help="the folder to check (default: exercises)"
    )
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON only")


def watch_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu watch``."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="data_parallel.split, split, data_parallel (all of a module) or all; "
        "default: the first exercise that does not pass yet",
    )


def run_check(options: argparse.Namespace) -> int:
    """Check, show, remember.  Returns the exit code."""
    progress = Progress(options.course)
    exercises = progress.catalog.find_all(options.names)
    with WarmServer() as server:  # it imports torch while this process does
        with waiting_sign(options.json):
            folder = Submitted(progress, server, options.submission)
            verdicts = folder.verdicts(exercises)
        if options.json:
            print(json.dumps([verdict.record() for verdict in verdicts], indent=2))
        else:
            folder.show(verdicts)
    return exit_code(verdicts)


@contextlib.contextmanager
def waiting_sign(quiet: bool) -> Iterator[None]:
    """Show a spinner while the checks run, in a terminal only."""
    from multigpu.commands.showing import console

    if quiet or not console().is_terminal:
        yield
        return
    with console(sys.stdout).status("checking"):
        yield


class Submitted:
    """Checks one folder: the learner's own, or another that was handed in."""

    def __init__(
        self, progress: Progress, server: WarmServer, submission: Path | None = None
    ) -> None:
        self.progress, self.server = progress, server
        self.submission = submission or progress.course.exercises
        self.own = self.submission.resolve() == progress.course.exercises.resolve()

    def verdicts(self, exercises: Sequence[Exercise]) -> list[Verdict]:
        """The verdicts on these exercises; without any, up to the first that does not pass.

        What is in the learner's own folder is remembered.
        """
        sources = self.progress.sources()
        verdicts = self._check(exercises) if exercises else list(self._until_one_fails())
        if self.own:
            try:
                self.progress.note(verdicts, sources)
            except OSError as error:  # the verdicts are worth showing all the same
                print(f"This result cannot be remembered: {error}", file=sys.stderr)
        return verdicts

    def _check(self, exercises: Sequence[Exercise]) -> list[Verdict]:
        from multigpu.checking import session  # and torch, while the server imports it

        return session.check_with(
            self.server, exercises, self.progress.course, submission=self.submission
        )

    def _until_one_fails(self) -> Iterator[Verdict]:
        """In the learner's own folder, exercises that are not begun are left out after a pass,
        because they are the next task. A folder that was handed in must be complete.
        """
        to_do = self.progress.to_do() if self.own else self.progress.catalog.exercises
        for number, exercise in enumerate(to_do):
            (verdict,) = self._check([exercise])
            if self.own and number and verdict.status == "not_started":
                return
            yield verdict
            if verdict.status != "pass":
                return

    def show(self, verdicts: Sequence[Verdict]) -> None:
        """Print the verdicts and, below them, what to do next."""
        from multigpu.commands.showing import console, show_verdicts

        out, messages = console(), self.progress.course.pages / "troubleshooting.html"
        command = self.progress.course.command
        show_verdicts(verdicts, out, folder=self.submission, messages=messages)
        failed = next((verdict for verdict in verdicts if verdict.status != "pass"), None)
        advice = []
        if not verdicts:  # all have passed before
            advice = [after_the_last(self.progress.course)]
        elif failed is None:
            advice = what_next(verdicts[-1], self.progress) if self.own else []
        elif failed.status == "checker_fault":
            advice = ["The check is at fault, not your code. Please report it."]
            advice += [f"Its author can run: {command(f'author check {failed.exercise}')}"]
        elif self.own and failed.message_id in ("missing_file", "missing_function"):
            advice = [f"restore the starter: {command(f'reset {failed.exercise}')}"]
        elif failed.status == "not_started":
            advice = [f"read the task: {command(f'next {not_begun(failed, self.progress)}')}"]
        else:
            advice = [f"stuck? {command(f'hint {at_fault(failed, self.progress)}')}"]
        for line in advice:
            out.print(line, style="dim")


def what_next(verdict: Verdict, progress: Progress) -> list[str]:
    """What to do after a pass: first what is still open in the same file."""
    to_do = progress.to_do()
    passed = progress.catalog.one(verdict.exercise)
    same_file = [exercise for exercise in to_do if exercise.chapter == passed.chapter]
    said = []
    if not same_file:
        place = shlex.quote(str(progress.place(passed)))
        said = [f"{passed.file} is done. Run it: python {place}"]
    if not to_do:
        return [*said, after_the_last(progress.course)]
    next_one = (same_file or to_do)[0]
    name = "" if next_one == to_do[0] else f" {next_one.name}"  # the bare command goes there, too
    return [*said, f"next: {next_one.name} ({progress.course.command(f'next{name}')})"]


def after_the_last(course: Course) -> str:
    """What to do when no exercise is left."""
    if not (course.root / "notebooks").is_dir():
        return ALL_DONE
    return f"{ALL_DONE} Run the notebooks again: every part of them now uses your code."


def not_begun(verdict: Verdict, progress: Progress) -> str:
    """The exercise that is not written yet: the one asked for, or one that it calls.

    Two files may have a function of the same name: the one beside the caller is meant.
    """
    module = verdict.exercise.partition(".")[0]
    named = [e for e in progress.catalog.exercises if e.function == verdict.unwritten]
    named.sort(key=lambda exercise: exercise.chapter.module != module)
    return named[0].name if named else verdict.exercise


def at_fault(verdict: Verdict, progress: Progress) -> str:
    """The exercise whose hint helps.

    Two that work together are checked together, and the message id names the one at fault.
    """
    module = verdict.exercise.partition(".")[0]
    named = f"{module}.{(verdict.message_id or '').partition('.')[0]}"
    exercises = [exercise.name for exercise in progress.catalog.exercises]
    return named if named in exercises else verdict.exercise


def run_watch(options: argparse.Namespace) -> int:
    """Check, wait for a change, check again, until Ctrl-C."""
    from multigpu.commands.showing import console

    progress, out = Progress(options.course), console()
    exercises = progress.catalog.find_all(options.names)
    with WarmServer() as server:
        folder = Submitted(progress, server)
        while True:
            seen = stamps(folder.submission)
            folder.show(folder.verdicts(exercises))
            now = time.strftime("%H:%M:%S")
            out.print(f"{now}  waiting for you to save (Ctrl-C ends)", style="dim")
            wait_for_change(folder.submission, seen)


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
        with contextlib.suppress(OSError):  # an editor is just replacing it
            status = path.stat()
            found[path] = (status.st_mtime_ns, status.st_size)
    return found
