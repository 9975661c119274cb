"""What exercises there are: the public functions and classes of ``solutions``, in their order.

The files are parsed and never imported, so that this works before torch is loaded.
"""

import ast
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from multigpu.checking.places import Course
from multigpu.checking.refused import COLLECTIVES, READY_MADE_TRAINING


class UnknownExercise(Exception):
    """No exercise or module has the name that was asked for."""


@dataclass(frozen=True)
class Chapter:
    """One exercise module: its title, and what may not be used in it.

    ``refused`` names what learners would import.  With ``messages_only`` a rank may do nothing but
    send and receive, whatever name it calls that by: the trace of a run tells.
    """

    module: str
    title: str
    refused: tuple[str, ...] = ()
    messages_only: bool = False


CHAPTERS = (
    Chapter(
        "data_parallel",
        "Data parallelism by hand",
        refused=("torch.nn.parallel", "torch.nn.DataParallel", "torch.cuda.comm"),
    ),
    Chapter(
        "collectives",
        "Collectives from send and recv",
        refused=COLLECTIVES,
        messages_only=True,
    ),
    Chapter("model_server", "The model server"),
    Chapter(
        "distributed_data_parallel",
        "DistributedDataParallel by hand",
        refused=READY_MADE_TRAINING,
    ),
    Chapter("sharding", "Sharded optimizers and models", refused=READY_MADE_TRAINING),
    Chapter("pipeline", "Pipeline parallelism", refused=("torch.distributed.pipelining",)),
    Chapter("hangs", "Programs that hang", refused=READY_MADE_TRAINING),
)


@dataclass(frozen=True)
class Signature:
    """How the checks call an exercise: so many values by position, and these by name."""

    positional: tuple[str, ...]
    keyword_only: tuple[str, ...]
    text: str  # "split(batch, devices)"


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
    def exercises(self) -> tuple[Exercise, ...]:
        """Every exercise, chapter after chapter."""
        return tuple(
            exercise for chapter in CHAPTERS for exercise in exercises_of(chapter, self.course)
        )

    def find(self, name: str) -> tuple[Exercise, ...]:
        """The exercises that ``name`` means: one, all of a module, or ``all``.

        A bare function name such as ``split`` is enough where only one module has it.
        Raises UnknownExercise with a suggestion.
        """
        if name == "all":
            return self.exercises
        name = name.removesuffix(".py").removeprefix("exercises/")
        for key in ("name", "module", "function"):
            found = tuple(e for e in self.exercises if _keys(e)[key] == name)
            if key == "function" and len(found) > 1:
                raise UnknownExercise(
                    f"{name} is in several modules: {', '.join(e.name for e in found)}. "
                    "Give the whole name."
                )
            if found:
                return found
        raise UnknownExercise(self._suggestion(name))

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

    def _suggestion(self, name: str) -> str:
        by_key = {key: e.name for e in self.exercises for key in (e.function, e.name)}
        by_key |= {e.chapter.module: e.chapter.module for e in self.exercises}
        close = difflib.get_close_matches(name, by_key, n=1)
        if not close:
            return f"There is no exercise {name}. `multigpu list` shows all of them."
        return f"There is no exercise {name}. Did you mean {by_key[close[0]]}?"


def exercises_of(chapter: Chapter, course: Course) -> list[Exercise]:
    """The exercises of one chapter; none while its solution is not there yet."""
    path = course.solutions / f"{chapter.module}.py"
    return list(_exercises_in(chapter, path.read_text("utf-8"))) if path.is_file() else []


@lru_cache(maxsize=64)  # one process asks for the same few files again and again
def _exercises_in(chapter: Chapter, source: str) -> tuple[Exercise, ...]:
    return tuple(
        Exercise(chapter, node.name, signature_of(node), ast.get_docstring(node) or "")
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    )


def signature_of(node: ast.FunctionDef | ast.ClassDef) -> Signature:
    """What a function takes; for a class, what its constructor takes."""
    name = node.name
    if isinstance(node, ast.ClassDef):
        found = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        if not found:
            return Signature((), (), f"{name}()")
        node = found[0]
        node.args.args = node.args.args[1:]  # without self
    arguments = node.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        argument.annotation = None  # the names alone are easier to read
    return Signature(
        tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args)),
        tuple(a.arg for a in arguments.kwonlyargs),
        f"{name}({ast.unparse(arguments)})",
    )


def _keys(exercise: Exercise) -> dict[str, str]:
    return {
        "name": exercise.name,
        "module": exercise.chapter.module,
        "function": exercise.function,
    }
