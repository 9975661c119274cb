"""The commands about exercises: ``multigpu list``, ``next``, ``hint``, ``solution``, ``reset``."""

import argparse
import ast
import os
import shutil
import tokenize
from datetime import datetime
from itertools import groupby

from rich.syntax import Syntax
from rich.text import Text

from multigpu.checking.catalog import Course, Exercise, tables_in
from multigpu.checking.lessons import as_lessons, lessons_with
from multigpu.checking.progress import Progress
from multigpu.checking.source import first_line, last_line, put_back, reached, starter_for
from multigpu.commands.showing import console, heading, indented, mark, show_beside

# An exercise's state in the list has the mark of this verdict.
LIKE_STATUS = {"pass": "pass", "failed": "wrong", "unchecked": "not_started", "starter": None}
WORDS = {
    "pass": "done",
    "failed": "does not pass yet",
    "unchecked": "not checked as it is now",
    "starter": "",
}
NARROWEST = 15  # columns for the names of a chapter


def run_list(options: argparse.Namespace) -> int:
    """Show every exercise on a line, and what is done."""
    progress, out = Progress(options.course), console()
    states = {e: progress.state(e) for e in progress.catalog.exercises}
    for chapter, group in groupby(states, key=lambda exercise: exercise.chapter):
        exercises = list(group)
        width = max(NARROWEST, *(len(exercise.function) for exercise in exercises))
        if exercises[0] is not next(iter(states)):
            out.print()
        lessons = lessons_with(exercise=chapter.module)  # none while an author is at work
        where = [f"exercises/{chapter.module}.py", *([as_lessons(lessons)] if lessons else [])]
        out.print(heading(chapter.title, ", ".join(where)))
        for exercise in exercises:
            status, word = LIKE_STATUS[states[exercise]], WORDS[states[exercise]]
            name = f" {exercise.function:<{width}} "
            start = Text.assemble("  ", mark(status) if status else " ", name)
            summary = Text(exercise.summary.replace("``", ""), "dim")
            show_beside(start, Text(f"{word}: " if word else "") + summary, out)
    done = sum(state == "pass" for state in states.values())
    out.print(f"\n{done} of {len(states)} done")
    if "unchecked" in states.values():
        how = progress.course.command("check NAME")
        out.print(f"check changed exercises with: {how}", style="dim")
    return 0


def next_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu next``: the name of one exercise."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="for example split, or a module (collectives) for its first exercise that is not "
        "done; default: the next exercise",
    )


def run_next(options: argparse.Namespace) -> int:
    """Show the task of an exercise, where to write it and how to check it."""
    progress, out = Progress(options.course), console()
    exercise = progress.chosen(options.name)
    if exercise is None:
        out.print(f"{all_done(options.name)} Congratulations!")
        return 0
    out.print(heading(exercise.name, exercise.chapter.title))
    out.print()
    task = exercise.task.partition("\nLesson: ")[0]  # the lesson is named below
    out.print(indented(f"{exercise.signature.text}\n\n{task}"))
    out.print()
    rows, course = [], progress.course
    for lesson in lessons_with(exercise=exercise.name):  # none while an author is at work
        page = course.pages / "lessons" / f"{lesson.page}.html"
        built = page.is_file()
        rows += [("read before", f"{as_lessons([lesson])}, {lesson.title}")]
        rows += [("on the page", os.path.relpath(page) if built else "multigpu start opens it")]
    for label, text in (
        *rows,
        ("write it in", progress.place(exercise)),
        ("check it with", course.command(f"check {exercise.name}")),
        ("if you are stuck", course.command(f"hint {exercise.name}")),
    ):
        out.print(Text(f"{label:<17}", "cyan") + Text(text))
    return 0


def all_done(name: str | None) -> str:
    """The message when no exercise is left."""
    of = f" of {name}" if name not in (None, "all") else ""
    return f"All exercises{of} are done."


def hint_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu hint``."""
    next_options(parser)
    parser.add_argument("--more", action="store_true", help="the next one")


def run_hint(options: argparse.Namespace) -> int:
    """Show the hints that were shown before, the first at least; ``--more`` shows the next one."""
    progress, out = Progress(options.course), console()
    exercise = progress.chosen(options.name)
    if exercise is None:
        out.print(all_done(options.name))
        return 0
    hints = hints_for(exercise, progress.course)
    if not hints:
        out.print(f"There are no hints for {exercise.name}.")
        return 1
    number = min(max(1, progress.hints_shown(exercise) + options.more), len(hints))
    progress.note_hints(exercise, number)
    first = number if options.more else 1
    for position, hint in enumerate(hints[first - 1 : number], start=first):
        out.print(heading(exercise.name, f"hint {position} of {len(hints)}"))
        out.print()
        out.print(indented(hint))
        out.print()
    if number < len(hints):
        words = f"more: {progress.course.command(f'hint {exercise.name} --more')}"
    else:
        words = f"the answer: {progress.course.command(f'solution {exercise.name} --peek')}"
    out.print(words, style="dim")
    return 0


def hints_for(exercise: Exercise, course: Course) -> list[str]:
    """The hints of an exercise, the mildest first."""
    sections = tables_in(course.hints / f"{exercise.chapter.module}.toml")
    return list(sections.get(exercise.function, {}).get("hints", []))


def solution_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu solution``."""
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--peek", action="store_true", help="show it before yours passes")


def run_solution(options: argparse.Namespace) -> int:
    """Show the reference answer, or say how to see it."""
    progress, out = Progress(options.course), console()
    exercise = progress.catalog.one(options.name)
    if not options.peek and progress.state(exercise) != "pass":
        how = progress.course.command(f"check {exercise.name}")
        out.print(
            f"{exercise.name} does not pass yet. Check it with `{how}`, or add --peek to see the "
            "answer anyway."
        )
        return 1
    source = (progress.course.solutions / exercise.file).read_text(encoding="utf-8")
    code = code_of(source, exercise.function)
    out.print(Text(f"solutions/{exercise.file}", "dim"))
    if out.is_terminal and not out.no_color:
        out.print(Syntax(code, "python", theme="ansi_dark", background_color="default"))
    else:
        out.print(Text(code))
    return 0


def code_of(source: str, function: str) -> str:
    """An exercise's code and the private parts of the module that it uses, without the task.

    The task is the docstring, which ``multigpu next`` shows.
    """

    def is_private(node: ast.stmt) -> bool:
        name: str = getattr(node, "name", "")
        return name.startswith("_") and not name.startswith("__")

    tree, lines = ast.parse(source), source.splitlines()
    tree.body = [n for n in tree.body if getattr(n, "name", function) == function or is_private(n)]
    exercise, *_ = parts = reached(tree, function)
    assert isinstance(exercise, ast.FunctionDef | ast.ClassDef)
    task = range(0)  # its lines, with the blank one below it
    if ast.get_docstring(exercise):
        first, end = exercise.body[0].lineno, last_line(exercise.body[0])
        task = range(first, end + 1 + (lines[end : end + 1] == [""]))
    texts = []
    for node in sorted(parts, key=first_line):
        numbers = range(first_line(node), last_line(node) + 1)
        texts.append("\n".join(lines[number - 1] for number in numbers if number not in task))
    return "\n\n\n".join(texts)


def reset_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu reset``."""
    parser.add_argument("name", metavar="NAME", help="an exercise, or a module for all of its file")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run_reset(options: argparse.Namespace) -> int:
    """Put the starter back: ask, keep a copy, reset."""
    progress, out = Progress(options.course), console()
    exercises = progress.catalog.find(options.name)
    if len({exercise.chapter for exercise in exercises}) > 1:
        out.print("Reset one module at a time.")
        return 2
    path = progress.file(exercises[0])
    named = options.name.removesuffix(".py").removeprefix("exercises/")
    whole = named == path.stem or len(exercises) > 1 or not path.is_file()
    what = f"all of {path.name}" if whole else exercises[0].name
    question = f"Reset {what}? A copy of the file is kept. [y/N] "
    if not options.yes and input(question).strip().lower() not in ("y", "yes"):
        out.print("Nothing was changed.")
        return 1
    starter = starter_for(path.stem, progress.course)
    new = starter.encode()
    try:
        if not whole:
            with tokenize.open(path) as file:  # as Python: a mark or a comment names the encoding
                text = put_back(file.read(), starter, exercises[0].function)
                new = text.encode(file.encoding)
    except (SyntaxError, ValueError) as error:
        how = progress.course.command(f"reset {exercises[0].chapter.module}")
        out.print(
            f"{path.name} cannot be read: {str(error).replace('<unknown>, ', '')}. Fix that, or "
            f"reset the whole file: {how}",
            markup=False,
        )
        return 1
    if path.is_file():
        kept = progress.course.state / "kept" / f"{path.stem}-{datetime.now():%Y%m%d-%H%M%S-%f}.py"
        kept.parent.mkdir(parents=True, exist_ok=True)
        out.print(f"kept: {shutil.copy2(path, kept)}")
    path.write_bytes(new)
    out.print(f"reset: {what}")
    return 0
