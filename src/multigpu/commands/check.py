"""``multigpu check``: run the checks of some exercises and explain what is wrong."""

import argparse
import json
import sys
from pathlib import Path

from multigpu.checking.catalog import Catalog, UnknownExercise
from multigpu.checking.judge import check
from multigpu.checking.places import CourseNotFound, find_course
from multigpu.checking.verdicts import exit_code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu check``."""
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--submission", metavar="DIR", type=Path)
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace) -> int:
    """Check, show, and return the exit code."""
    try:
        course = find_course(Path.cwd())
        exercises = Catalog(course).find_all(options.names)
    except (CourseNotFound, UnknownExercise) as error:
        print(error, file=sys.stderr)
        return 2
    submission = options.submission or course.exercises
    verdicts = check(exercises, course, submission=submission)
    print(json.dumps([verdict.record() for verdict in verdicts], indent=2))
    return exit_code(verdicts)
