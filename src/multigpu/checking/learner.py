"""What a check holds in its hands: ``learner.run`` runs the learner's code in a worker."""

import ast
import sys
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from multigpu.checking.catalog import Exercise
from multigpu.checking.endings import Ending, refuse_bad_ending, refused_name
from multigpu.checking.limits import Limits
from multigpu.checking.names import first_refused_name
from multigpu.checking.request import Request
from multigpu.checking.verdicts import Refused
from multigpu.checking.warm import ServerDied, WarmServer
from multigpu.checking.wire import decode

Drive = Callable[..., Any]


@dataclass(frozen=True)
class Answer:
    """What came back from one run that ended cleanly.

    ``result`` is what the drive returned: plain data, Returned for tensors, Foreign for all else.
    ``where`` is the line from which the exercise's function returned last ("data_parallel.py:41").
    """

    result: Any
    where: str
    output: str
    seconds: float


@dataclass
class Learner:
    """One submission, seen from one check."""

    server: WarmServer
    exercise: Exercise
    submission: Path
    backing: str = "cpu"
    limits: Limits = field(default_factory=Limits)
    answers: list[Answer] = field(default_factory=list)

    def run(
        self, drive: Drive, *arguments: Any, gpus: int, memory: str = "8 GiB", **limits: float
    ) -> Answer:
        """Run ``drive(submission, devices, *arguments)`` in a worker with ``gpus`` GPUs.

        ``drive`` is a function of the check's own file; it and the arguments travel by value, and
        tensors among them lie on the CPU.  ``limits`` changes fields of Limits for this run.

        Raises Refused with the right status when no answer came: the check goes no further then.
        """
        path = self.submission / self.exercise.file
        source = read_source(path, self.exercise)
        refuse_names(source, path, self.exercise)
        request = Request(
            path=str(path),
            source=source,
            function=self.exercise.function,
            signature=self.exercise.signature,
            refused=self.exercise.chapter.refused,
            gpus=gpus,
            memory=memory,
            backing=self.backing,
            limits=replace(self.limits, **limits),  # type: ignore[arg-type]
        )
        try:
            report, blob = self.server.ask(request.header(), by_value(drive, arguments))
        except ServerDied as death:
            raise Refused("crash", "killed_checker", KILLED.format(death=death)) from None
        ending = Ending(report | {"limits": asdict(request.limits)}, self.exercise, path)
        refuse_bad_ending(ending)
        answer = Answer(decode(blob), ending.where, ending.output, report["seconds"])
        self.answers.append(answer)
        return answer


KILLED = """\
came: the process that watches over your code ended while your code ran. {death}
usually: your code sends a signal to its parent process, or to all processes."""


def read_source(path: Path, exercise: Exercise) -> str:
    """The text of the learner's file.

    Raises Refused when there is none, or when it is no Python (before anything is run).
    """
    if not path.parent.is_dir():
        raise Refused("missing_file", "missing_folder", f"There is no folder {path.parent}.")
    if not path.is_file():
        message = (
            f"There is no file {path.name} in {path.parent}.\n"
            f"usually: it was renamed or moved. `multigpu reset {exercise.chapter.module}` "
            "makes it anew."
        )
        raise Refused("missing_file", "missing_file", message)
    try:
        source = path.read_bytes().decode()
        ast.parse(source)
    except UnicodeDecodeError as error:
        raise Refused("crash", "syntax_error", f"{path.name} is no UTF-8 text: {error}") from None
    except SyntaxError as error:
        raise Refused("crash", "syntax_error", syntax_message(error, path)) from None
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; nested too deep
        raise Refused("crash", "syntax_error", f"{path.name} is no Python: {error}") from None
    return source


def syntax_message(error: SyntaxError, path: Path) -> str:
    """The line with a mark under the place, as Python shows it."""
    text = (error.text or "").rstrip("\n")
    stripped = text.lstrip()
    column = max(0, (error.offset or 1) - 1 - (len(text) - len(stripped)))
    return (
        f"came: SyntaxError: {error.msg}\n"
        f"  {stripped}\n"
        f"  {' ' * column}^\n"
        f"where: {path.name}:{error.lineno}"
    )


def refuse_names(source: str, path: Path, exercise: Exercise) -> None:
    """Refuse code that names what this chapter is about to build by hand."""
    found = first_refused_name(source, exercise.function, exercise.chapter.refused)
    if found is not None:
        name, line = found
        raise refused_name(name, f"{path.name}:{line}", exercise)


def by_value(drive: Drive, arguments: tuple[Any, ...]) -> bytes:
    """Drive and arguments as bytes, with every function of the check's own files inside."""
    own = sys.modules.get(drive.__module__)
    modules = {m.__name__: m for m in list(sys.modules.values()) if _lies_beside(m, own)}
    for module in modules.values():
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps((drive, arguments)))
    finally:
        for module in modules.values():
            cloudpickle.unregister_pickle_by_value(module)


def _lies_beside(module: types.ModuleType, own: types.ModuleType | None) -> bool:
    """Whether a module is a file of the same folder as the check."""
    file, own_file = getattr(module, "__file__", None), getattr(own, "__file__", None)
    return bool(file and own_file and Path(file).parent == Path(own_file).parent)
