"""What a check holds in its hands: ``learner.run`` runs the learner's code in a worker."""

import os
import sys
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from multigpu.checking.catalog import Exercise
from multigpu.checking.ending import Ending
from multigpu.checking.endings import refuse_bad_ending
from multigpu.checking.request import Request
from multigpu.checking.submission import Submission
from multigpu.checking.tracing import return_lines
from multigpu.checking.verdicts import Refused
from multigpu.checking.warm import ServerDied, WarmServer
from multigpu.checking.wire import Unreadable, decode
from multigpu.ranks.limits import Limits

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
    submission: Submission
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
        path = self.submission.path(self.exercise)
        source = self.submission.source(self.exercise)
        request = Request(
            path=str(path),
            source=source,
            return_lines=return_lines(source),
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
        try:
            result = decode(blob)
        except Unreadable as error:
            raise ending.refused("crash", "broke_checker", GARBLED.format(error=error)) from None
        answer = Answer(result, ending.where, ending.output, report["seconds"])
        self.answers.append(answer)
        return answer


KILLED = """\
came: the process that watches over your code ended while your code ran. {death}
usually: your code sends a signal to its parent process, or to all processes."""


GARBLED = """\
came: after your code had run, its result could not be read. {error}
usually: the code changed something that belongs to Python or torch itself."""


def by_value(drive: Drive, arguments: tuple[Any, ...]) -> bytes:
    """Drive and arguments as bytes, with every function of the check's own files inside."""
    _send_by_value(drive.__module__)
    return bytes(cloudpickle.dumps((drive, arguments)))


@cache
def _send_by_value(name: str) -> None:
    """Have cloudpickle copy what the check's file, and those beside it, define."""
    folder = _folder(sys.modules[name])
    if not folder:  # a notebook or a command line, which cloudpickle copies anyway
        return
    beside = {m.__name__: m for m in list(sys.modules.values()) if _folder(m) == folder}
    for module in beside.values():
        cloudpickle.register_pickle_by_value(module)


def _folder(module: types.ModuleType) -> str:
    """The folder of a module's file; the module itself is not asked: it may be a lazy one."""
    return os.path.dirname(vars(module).get("__file__") or "")
