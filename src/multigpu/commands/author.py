"""``multigpu author``: what somebody who writes exercises asks of a declaration.

``multigpu author check NAME`` tries every program of a declaration: each right answer must pass,
each mistake must be refused under its own id, the starter must come out as not started.
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from multigpu.checking.catalog import Catalog, Course, Exercise
from multigpu.checking.learner import WarmServer
from multigpu.checking.verdicts import Verdict


@dataclass(frozen=True)
class Trial:
    """One program of a declaration, what it must get, and what it got."""

    program: str
    due: str  # "pass", "not_started" or the id of a message
    verdict: Verdict

    @property
    def came(self) -> str:
        """The id of the message, or the status where there is none."""
        return self.verdict.message_id or self.verdict.status

    @property
    def is_right(self) -> bool:
        """Whether it got what it must get."""
        return self.came == self.due


def author_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu author``."""
    parser.add_argument("action", choices=["check"], help="try every program of a declaration")
    parser.add_argument("name", metavar="NAME", help="the exercise, such as data_parallel.split")
    parser.add_argument("--course", metavar="DIR", type=Path, help="the course's folder")
    parser.add_argument("--only", metavar="WORD", help="programs whose name or id has WORD in it")
    parser.add_argument("--messages", action="store_true", help="show the messages as well")


def run_author(options: argparse.Namespace) -> int:
    """Try the programs, and list what came.  Returns 1 if one did not get what it must get."""
    from multigpu.checking.catalog import this_course
    from multigpu.commands.showing import console

    course = Course(options.course.resolve()) if options.course else this_course()
    exercise = Catalog(course).one(options.name)
    out, failed = console(), 0
    for trial in trials(course, exercise, only=options.only or ""):
        failed += not trial.is_right
        line = f"{' ' if trial.is_right else '!'} {trial.program:<44} {trial.came}"
        if not trial.is_right:
            line += f"   must be {trial.due}"
        out.print(f"{line}   {trial.verdict.seconds:.1f} s", markup=False)
        if options.messages or not trial.is_right:
            out.print(trial.verdict.message + "\n", markup=False)
    return 1 if failed else 0


def trials(course: Course, exercise: Exercise, *, only: str = "") -> Iterator[Trial]:
    """Try every program of an exercise's declaration, the starter and the solution."""
    from multigpu.checking.declaration import load
    from multigpu.checking.session import check_with
    from multigpu.checking.source import starter_for

    solution = (course.solutions / exercise.file).read_text(encoding="utf-8")
    declaration = load(course.check_file(exercise.chapter.module, exercise.function))
    programs = [("the solution", "pass", solution)]
    if not course.broken(exercise.chapter.module).is_file():
        starter = starter_for(exercise.chapter.module, course)
        programs.append(("the starter", "not_started", starter))
    programs += [(p.name, "pass", p.module(solution)) for p in declaration.rights]
    programs += [(m.program.name, m.id, m.program.module(solution)) for m in declaration.mistakes]
    with WarmServer() as server, tempfile.TemporaryDirectory() as folder:
        for name, due, text in programs:
            if only in f"{name} {due}":
                Path(folder, exercise.file).write_text(text, encoding="utf-8")
                (verdict,) = check_with(
                    server, [exercise], course, submission=Path(folder), options=["-x"]
                )
                yield Trial(name, due, verdict)
