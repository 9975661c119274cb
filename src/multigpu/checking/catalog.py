"""What a copy of the course consists of: its folders, chapters and exercises.

The exercises are the public functions and classes of ``solutions``, in their order.  The files are
parsed and never imported, so that this works before torch is loaded.
"""

import ast
import contextlib
import difflib
import os
import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any


class CourseNotFound(Exception):
    """The command was started outside the course's folder."""


class UnknownExercise(Exception):
    """No exercise or module has the name that was asked for."""


class BadSettings(Exception):
    """A TOML file of a course cannot be used; the message names it and says why."""


@dataclass(frozen=True)
class Course:
    """The folders of one copy of the course."""

    root: Path

    @property
    def exercises(self) -> Path:
        """The learner's files."""
        return self.root / "exercises"

    @property
    def solutions(self) -> Path:
        """The reference answers: the same modules with the same signatures."""
        return self.root / "solutions"

    def broken(self, module: str) -> Path:
        """The starter of a module whose exercises are broken code to fix; most have none."""
        return self.solutions / "broken" / f"{module}.py"

    @property
    def checks(self) -> Path:
        """The pytest files that check a submission."""
        return self.root / "tests" / "exercises"

    @property
    def settings(self) -> Path:
        """The titles and rules of the chapters, in their order.  Optional."""
        return self.root / "course.toml"

    @property
    def hints(self) -> Path:
        """One toml file per module, three hints per exercise."""
        return self.exercises / "hints"

    @property
    def state(self) -> Path:
        """What the command remembers between two runs.  Safe to delete."""
        return self.root / ".multigpu"

    @property
    def pages(self) -> Path:
        """The built site."""
        return self.root / "docs" / "_build" / "html"

    @property
    def is_there(self) -> bool:
        """Whether the folder looks like a course."""
        return self.solutions.is_dir() and self.checks.is_dir()

    def checks_of(self, module: str) -> list[Path]:
        """What decides about a module's answers: its declarations, their helpers, course.toml."""
        return [*(self.checks / module).glob("*.py"), self.settings]

    def check_file(self, module: str, function: str) -> Path:
        """The file that declares an exercise."""
        return self.checks / module / f"{function}.py"

    def command(self, words: str) -> str:
        """``multigpu next split``, as it works in the current folder: outside with --course."""
        with contextlib.suppress(CourseNotFound):
            if find_course(Path.cwd()).root == self.root:
                return f"multigpu {words}"
        return f"multigpu {words} --course {shlex.quote(os.path.relpath(self.root))}"


def course_in(folder: Path) -> Course:
    """The course in this folder, and not one around it.  Raises CourseNotFound."""
    course = Course(folder.resolve())
    if not course.is_there:
        raise CourseNotFound(
            f"--course {folder}: there is no course, with solutions/ and tests/exercises/. Give "
            "the folder in which they are."
        )
    return course


def find_course(start: Path) -> Course:
    """The course around ``start``: the nearest folder upwards that looks like it.

    Raises CourseNotFound when there is none.
    """
    for folder in (start, *start.parents):
        course = Course(folder)
        if course.is_there:
            return course
    raise CourseNotFound(
        f"{start} is not inside the course's folder (the one with exercises/ and solutions/). "
        "Go there with cd and try again. Commands about exercises also take it: --course DIR."
    )


def this_course() -> Course:
    """The course around the current folder, else the one around this package.

    Raises CourseNotFound when there is none.
    """
    try:
        return find_course(Path.cwd())
    except CourseNotFound:
        with contextlib.suppress(CourseNotFound):
            return find_course(Path(__file__).resolve().parent)
        raise


@dataclass(frozen=True)
class Chapter:
    """One exercise module: its title, and what may not be used in it.

    ``refused`` names the modules and packages that do the very work that the chapter builds by
    hand: a run that goes through their code is refused.  With ``messages_only`` a rank may do
    nothing but send and receive, which the trace of a run shows.
    """

    module: str
    title: str
    refused: tuple[str, ...] = ()
    messages_only: bool = False


@dataclass(frozen=True)
class Signature:
    """How the checks call an exercise: so many values by position, and these by name."""

    positional: tuple[str, ...]
    keyword_only: tuple[str, ...]
    text: str  # "split(batch, devices)"

    @classmethod
    def of(cls, node: ast.FunctionDef | ast.ClassDef) -> "Signature":
        """What a function takes; for a class, what its constructor takes."""
        name = node.name
        if isinstance(node, ast.ClassDef):
            inits = [n for n in node.body if isinstance(n, ast.FunctionDef)]
            inits = [n for n in inits if n.name == "__init__"]
            if not inits:
                return cls((), (), f"{name}()")
            node = inits[0]
            node.args.args = node.args.args[1:]  # without self
        arguments = node.args
        positional = (*arguments.posonlyargs, *arguments.args)
        for argument in (*positional, *arguments.kwonlyargs):
            argument.annotation = None  # the names alone are easier to read
        return cls(
            tuple(a.arg for a in positional),
            tuple(a.arg for a in arguments.kwonlyargs),
            f"{name}({ast.unparse(arguments)})",
        )


@dataclass(frozen=True)
class Exercise:
    """One function or class that a learner writes."""

    chapter: Chapter
    function: str
    signature: Signature
    task: str  # the docstring

    @property
    def name(self) -> str:
        """For example ``data_parallel.split``."""
        return f"{self.chapter.module}.{self.function}"

    @property
    def file(self) -> str:
        """The file that holds it, in ``exercises`` and in ``solutions``."""
        return f"{self.chapter.module}.py"

    @property
    def summary(self) -> str:
        """The first line of its docstring, with one space where the source has two."""
        return " ".join(self.task.partition("\n")[0].split())


@dataclass(frozen=True)
class Catalog:
    """All exercises of one copy of the course, in the order in which they are meant to be done."""

    course: Course

    @cached_property
    def chapters(self) -> tuple[Chapter, ...]:
        """The modules with a solution: those in ``course.toml`` in its order, then others by name.

        A table of it says how to call a chapter, and what its exercises may not use:

            [my_chapter]
            title = "Sorting"
            refused = ["torch.nn.parallel"]
        """
        settings = self.course.settings
        tables = tables_in(settings)
        solutions = {path.stem: path for path in sorted(self.course.solutions.glob("*.py"))}
        chapters = []
        for module, own in tables.items():
            if unknown := own.keys() - {"title", "refused", "messages_only"}:
                raise BadSettings(
                    f"{settings}: [{module}] has a key {min(unknown)}; there are title, refused "
                    "and messages_only."
                )
        for module in dict.fromkeys([*tables, *solutions]):
            if module in solutions:
                own = tables.get(module, {})
                title = own.get("title") or title_of(solutions[module].read_text("utf-8")) or module
                refused = tuple(own.get("refused", ()))
                chapters.append(Chapter(module, title, refused, own.get("messages_only", False)))
        return tuple(chapters)

    @cached_property
    def exercises(self) -> tuple[Exercise, ...]:
        """Every exercise, chapter after chapter."""
        return tuple(
            exercise
            for chapter in self.chapters
            for exercise in _exercises_in(
                chapter, (self.course.solutions / f"{chapter.module}.py").read_text("utf-8")
            )
        )

    def find(self, name: str) -> tuple[Exercise, ...]:
        """The exercises that ``name`` means: one, all of a module, or ``all``.

        A bare function name such as ``split`` is enough where only one module has it.
        Raises UnknownExercise with a suggestion.
        """
        if name == "all":
            return self.exercises
        name = name.removesuffix(".py").removeprefix("exercises/")
        found = tuple(e for e in self.exercises if name in (e.name, e.chapter.module))
        if not found:
            found = tuple(e for e in self.exercises if e.function == name)
            if len(found) > 1:
                raise UnknownExercise(
                    f"{name} is in several modules: {', '.join(e.name for e in found)}. "
                    "Give the whole name."
                )
        if found:
            return found
        meant = {key: e.name for e in self.exercises for key in (e.function, e.name)}
        meant |= {e.chapter.module: e.chapter.module for e in self.exercises}
        close = difflib.get_close_matches(name, meant, n=1)
        advice = (
            f"Did you mean {meant[close[0]]}?"
            if close
            else f"`{self.course.command('list')}` shows all of them."
        )
        raise UnknownExercise(f"There is no exercise {name}. {advice}")

    def find_all(self, names: Sequence[str]) -> tuple[Exercise, ...]:
        """The exercises that several names mean, each once, in the order of the course."""
        wanted = {exercise for name in names for exercise in self.find(name)}
        return tuple(exercise for exercise in self.exercises if exercise in wanted)

    def one(self, name: str) -> Exercise:
        """The only exercise that ``name`` means.  Raises UnknownExercise otherwise."""
        found = self.find(name)
        if len(found) != 1:
            raise UnknownExercise(
                f"{name} means {len(found)} exercises; name one of them: "
                + ", ".join(e.name for e in found)
            )
        return found[0]


def tables_in(path: Path) -> dict[str, Any]:
    """What a TOML file of a course says; nothing if it does not exist.

    Raises BadSettings if it is not TOML.
    """
    try:
        return tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}
    except ValueError as error:  # not TOML, or not UTF-8
        raise BadSettings(f"{path} is not TOML: {error}") from None


def title_of(source: str) -> str:
    """The first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


@lru_cache(maxsize=64)  # one process asks for the same few files again and again
def _exercises_in(chapter: Chapter, source: str) -> tuple[Exercise, ...]:
    return tuple(
        Exercise(chapter, node.name, Signature.of(node), ast.get_docstring(node) or "")
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    )
