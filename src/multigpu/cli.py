"""The ``multigpu`` command.  Each sub-command lives in ``multigpu.commands``, loaded when used."""

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from multigpu.checking.catalog import (
    BadSettings,
    CourseNotFound,
    UnknownExercise,
    course_in,
    find_course,
    this_course,
)

HOMES = {  # the module of a command that is not called like it
    **dict.fromkeys(("list", "next", "hint", "solution", "reset"), "exercises"),
    "watch": "check",
    "trace": "run",
}
COMMANDS = {
    "start": "open JupyterLab and the course's pages in the browser",
    "list": "list all exercises and your progress",
    "next": "show the task of the next exercise",
    "check": "check your answers",
    "watch": "check again whenever you save",
    "grade": "check the answers of a whole class, and write a table of them",
    "hint": "show a hint",
    "reset": "restore the starter of an exercise (asks first, keeps a copy)",
    "solution": "show the reference answer, once yours passes",
    "partition": "rewrite a Parquet file with a row group count that suits the ranks",
    "run": "run a program of your own on virtual GPUs, on one process or on ranks",
    "trace": "run a program on ranks, record its calls and prove what makes it hang",
    "train": "train one of the course's models, on one GPU or many",
    "compare": "compare the speed of one GPU, DP and DDP on the same training",
    "plan": "predict memory and time of a large model on a cluster, or search for a layout",
    "author": "try the declaration of an exercise: its mistakes and its right answers",
    "doctor": "check whether this machine has everything the course needs",
}
OF_A_COURSE = {"list", "next", "check", "watch", "grade", "hint", "reset", "solution", "author"}
OF_TEACHERS = {"grade", "author"}  # outside of a course they take the one that is installed


class NotInstalled(Exception):
    """A command needs a package that is not installed; the message says how to install it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one sub-command; returns the exit code (2: wrong usage)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given:  # the bare name shows the list of commands
        parser_for(given).print_help()
        return 2
    try:
        parser = parser_for(given)
        options, more = parser.parse_known_args(given)
        if more:  # argparse takes no names after an option: check split --json gather
            if "names" not in options or any(word.startswith("-") for word in more):
                parser.error(f"unrecognized arguments: {' '.join(more)}")
            options.names = [*options.names, *more]
        if options.command in OF_A_COURSE:
            if options.course is not None:
                options.course = course_in(options.course)
            elif options.command in OF_TEACHERS:
                options.course = this_course()
            else:
                options.course = find_course(Path.cwd())
        code = int(getattr(module_of(options.command), f"run_{options.command}")(options))
    except (BadSettings, CourseNotFound, UnknownExercise, NotInstalled) as error:
        print(error, file=sys.stderr)
        return 2
    except (KeyboardInterrupt, EOFError):  # the latter: asked, but without a terminal to answer in
        print("\nstopped", file=sys.stderr)
        return 130
    in_multigpu_run = os.environ.get("TORCHELASTIC_RUN_ID") == "multigpu"
    runs_a_program = options.command == "run"  # which may have registered what is to run at exit
    if arguments is None and "torch" in sys.modules and not (in_multigpu_run or runs_a_program):
        # End this program at once: an orderly exit of torch costs a tenth of a second.
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    return code


def module_of(command: str) -> ModuleType:
    """The module with ``run_COMMAND(options) -> int`` and, if it has any, ``COMMAND_options``."""
    try:
        return importlib.import_module(f"multigpu.commands.{HOMES.get(command, command)}")
    except ModuleNotFoundError as missing:
        raise NotInstalled(
            f"{missing}: pip install -e '.[course]' -c constraints.txt in the repository"
        ) from missing


def parser_for(given: Sequence[str]) -> argparse.ArgumentParser:
    """A parser that knows the options of the sub-command that was given, and only those."""
    parser = argparse.ArgumentParser(
        prog="multigpu", description="Learn to train on many GPUs.", allow_abbrev=False
    )
    parsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((word for word in given if word in COMMANDS), None)
    for name, summary in COMMANDS.items():
        command = parsers.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        if name == chosen:
            getattr(module_of(name), f"{name}_options", lambda _: None)(command)
            if name in OF_A_COURSE:
                command.add_argument(
                    "--course",
                    metavar="DIR",
                    type=Path,
                    help="a course of your own (default: the one around the current folder)",
                )
    return parser
