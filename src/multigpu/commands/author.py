"""``multigpu author``: checks for the authors of exercises.

``multigpu author check NAME`` tries every program of a declaration: each right answer must pass,
each mistake must be refused under its own id, and the starter must be reported as not started.
Then it shows the entries of the troubleshooting page, and the cases in which no mistake shows.
``--only PROGRAM`` tries one program, and shows its verdict as a learner sees it.
``multigpu author starter MODULE`` makes the learners' file from the solution.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from multigpu.checking.catalog import Catalog, Chapter, Course, Exercise, tables_in
from multigpu.checking.declaration import Declaration
from multigpu.checking.learner import Learner, Submission, WarmServer
from multigpu.checking.source import starter_for, write_starter
from multigpu.checking.verdicts import CheckerFault


def author_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu author``."""
    parser.add_argument("action", choices=["check", "starter"])
    parser.add_argument("name", metavar="NAME", help="data_parallel.split; for a starter: a module")
    parser.add_argument(
        "--only",
        metavar="PROGRAM",
        help="try this program alone, or those with this word in their name or id, with --messages",
    )
    parser.add_argument("--messages", action="store_true", help="show what learners are told")


def run_author(options: argparse.Namespace) -> int:
    """Run the subcommand.  Returns 1 if a program got a wrong verdict, 2 for wrong usage."""
    course: Course = options.course
    if options.action == "starter":
        try:
            print(f"{options.name}.py: {write_starter(options.name, course)}")
        except (OSError, SyntaxError, ValueError) as error:  # the second: in the solution
            print(error, file=sys.stderr)
            return 2
        return 0
    from multigpu.checking.declaration import load
    from multigpu.checking.session import check_with
    from multigpu.commands.showing import console, show_verdicts

    catalog = Catalog(course)
    exercise = catalog.one(options.name)
    try:
        declaration = load(course.check_file(exercise.chapter.module, exercise.function))
        check_settings(catalog, exercise.chapter)
    except CheckerFault as error:
        print(error)
        return 2
    programs = [*programs_of(course, exercise, declaration)]
    if options.only:
        chosen = [each for each in programs if each[0] == options.only]
        chosen = chosen or [each for each in programs if options.only in " ".join(each[:2])]
        if not chosen:
            names = ", ".join(name for name, _, _ in programs)
            print(f"{exercise.name} has no program {options.only}. It has {names}.")
            return 2
        programs = chosen
    out, failed = console(), 0
    with WarmServer() as server, tempfile.TemporaryDirectory() as folder:
        for name, due, text in programs:
            Path(folder, exercise.file).write_text(text, encoding="utf-8")
            (verdict,) = check_with(
                server,
                [exercise],
                course,
                submission=Path(folder),
                stop_at_first=not options.only,
            )
            came = verdict.message_id or verdict.status
            failed += came != due
            line = f"{' ' if came == due else '!'} {name:<44} {came}"
            out.print(line + ("" if came == due else f"   must be {due}"), markup=False)
            if options.only or options.messages or came != due:
                show_verdicts([verdict], out)
        silent = [] if options.only else silent_cases(course, exercise, declaration, server)
    if not options.only:
        out.print("\non the troubleshooting page:", markup=False)
        for name, text in declaration.entries.items():
            out.print(f"  {name}: {text}", markup=False)
        if silent:
            out.print("\nno mistake shows in these cases:", markup=False)
        for title in silent:
            out.print(f"  {title}", markup=False)
    return 1 if failed else 0


def check_settings(catalog: Catalog, chapter: Chapter) -> None:
    """Raises CheckerFault for a table or a refused name in course.toml that has no effect."""
    from multigpu.checking.worker import place_of_module

    settings = catalog.course.settings
    if unknown := tables_in(settings).keys() - {each.module for each in catalog.chapters}:
        raise CheckerFault(
            f"{settings}: [{min(unknown)}] is not a chapter, as there is no "
            f"{catalog.course.solutions / min(unknown)}.py."
        )
    for name in chapter.refused:
        if not place_of_module(name):
            raise CheckerFault(
                f"{settings}: [{chapter.module}] refuses {name}, which is not a module in Python. "
                "Give the module with the code that an answer must not go through, such as "
                "torch.nn.parallel."
            )


def programs_of(
    course: Course, exercise: Exercise, declaration: Declaration
) -> Iterator[tuple[str, str, str]]:
    """The solution, the starter, and every program of a declaration.

    Yields its name, what its verdict must be ("pass", "not_started" or the id of a message), and
    the module with it.
    """
    solution = (course.solutions / exercise.file).read_text(encoding="utf-8")
    yield "the solution", "pass", solution
    if not course.broken(exercise.chapter.module).is_file():
        yield "the starter", "not_started", starter_for(exercise.chapter.module, course)
    for program in declaration.rights:
        yield program.name, "pass", program.module(solution)
    for mistake in declaration.mistakes:
        yield mistake.program.name, mistake.id, mistake.program.module(solution)


def silent_cases(
    course: Course, exercise: Exercise, declaration: Declaration, server: WarmServer
) -> list[str]:
    """The cases in which every mistake gives the right result; they may be superfluous."""
    from multigpu.checking.judging import Diagnosis, compare

    learner = Learner(server, exercise, Submission(course.solutions))
    mistakes = [mistake for mistake in declaration.mistakes if mistake.status == "wrong"]
    silent = []
    for cases in declaration.runs:
        results = Diagnosis(declaration, learner, cases).results(mistakes, cases)
        for case in cases:
            if all(run is not None and compare(run, case) is None for run in results):
                silent.append(case.title)
    return silent
