"""How a check runs a learner's code: ``learner.run`` does it in a worker and returns an Answer.

A Submission reads the learner's files, and the WarmServer starts the workers.  A run that brought
no answer is explained in ``run_verdict.py``.
"""

import ast
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.util import decode_source
from pathlib import Path
from typing import Any

from multigpu.checking.catalog import Exercise
from multigpu.checking.encoding import Request, Unreadable, by_value, decode
from multigpu.checking.run_verdict import Ending, refuse_bad_endings
from multigpu.checking.source import imported_modules, return_lines
from multigpu.checking.verdicts import Refused, by_rank
from multigpu.ranks.resource_monitor import Limits
from multigpu.ranks.server import Server, ServerDied
from multigpu.ranks.trace import Trace
from multigpu.ranks.warming import NAMED

Drive = Callable[..., Any]


@dataclass(frozen=True)
class Answer:
    """What came back from one run, of which every worker ended cleanly.

    ``results[r]`` is what the drive returned on rank r: plain data, Returned for tensors, Foreign
    for all else.  ``returns[r]`` says when the exercise's function returned there, and from which
    line ("data_parallel.py:41"), ``outputs[r]`` what rank r printed.  A run in one process has one
    of each, and no trace; ``trace`` has every call of ``torch.distributed`` that any rank made.
    """

    results: list[Any]
    returns: list[list[tuple[float, str]]]
    outputs: list[str]
    trace: Trace | None = None

    @property
    def output(self) -> str:
        """What was printed; by ranks each line with its rank."""
        return self.outputs[0] if self.trace is None else by_rank(self.outputs)


@dataclass
class Submission:
    """The modules in one folder, each read once: all checks of one run judge the same text."""

    folder: Path
    _sources: dict[Path, str] = field(default_factory=dict)

    def path(self, exercise: Exercise) -> Path:
        """The file that holds an exercise."""
        return self.folder / exercise.file

    def source(self, exercise: Exercise) -> str:
        """The text of that file.

        Raises Refused if it does not exist, or is not valid Python.
        """
        path = self.path(exercise)
        if path not in self._sources:
            self._sources[path] = read_source(path)
        return self._sources[path]

    def replace(self, exercise: Exercise, text: str) -> None:
        """Judge this text instead of what is in the file."""
        self._sources[self.path(exercise)] = text


def read_source(path: Path) -> str:
    """The text of a learner's file.  Raises Refused if there is none, or if it is not Python."""
    folder = path.parent
    if not folder.is_dir():
        raise Refused("missing_file", "missing_folder", f"There is no folder {folder}.")
    if not path.is_file():
        raise Refused(
            "missing_file",
            "missing_file",
            f"There is no file {path.name} in {folder}.",
            usually="it was renamed or moved.",
        )
    try:
        text = path.read_bytes()
    except OSError as error:
        raise Refused(
            "missing_file",
            "unreadable_file",
            came=f"{path.name} cannot be read: {error.strerror}.",
            usually=f"it belongs to another user. `ls -l {path}` shows who may read it.",
        ) from None
    try:
        source = decode_source(text)  # as Python itself: a mark or a comment may name the encoding
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise not_python(error, path) from None
    return source


def not_python(error: Exception, path: Path) -> Refused:
    """What is wrong with a text: its line with a mark under the place, as Python shows it."""
    if not isinstance(error, SyntaxError) or error.text is None:  # its encoding, or null bytes
        return Refused("crash", "syntax_error", f"{path.name} cannot be read as Python: {error}")
    line = error.text.strip()
    column = max(0, (error.offset or 1) - 1 - error.text.index(line))
    came = f"SyntaxError: {error.msg}\n  {line}\n  {' ' * column}^"
    return Refused("crash", "syntax_error", came=came, where=f"{path.name}:{error.lineno}")


class WarmServer(Server):
    """The process that starts workers: begun at once, waited for only by the first run."""

    def __init__(self) -> None:
        super().__init__("multigpu.checking.worker")
        self.start()


@dataclass
class Learner:
    """One submission, seen from one check."""

    server: WarmServer
    exercise: Exercise
    submission: Submission
    backing: str = "cpu"
    out_of_reach: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    answers: list[Answer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # on an answer that passes

    def run(
        self,
        drive: Drive,
        *arguments: Any,
        gpus: int = 0,
        world: int = 0,
        memory: str | None = None,
        **limits: float,
    ) -> Answer:
        """Run ``drive(submission, devices, *arguments)`` in a worker with ``gpus`` GPUs.

        Or ``drive(submission, rank, *arguments)`` on ``world`` ranks, each in its own worker:
        ``torch.distributed`` is initialized before the learner's module is imported, and every call
        of it is traced.

        ``drive`` is a function of the check's own file; it and the arguments travel by value, and
        tensors among them are on the CPU.  ``memory="1 MiB"`` is that of each GPU, or limits the
        tensors of each rank.  ``limits`` changes fields of Limits for this run.

        Raises Refused with the right status when no answer came, or a worker did not end cleanly:
        the check goes no further then.  Where ranks got stuck or disagree the exception has a
        ``finding``.
        """
        path, source = self.submission.path(self.exercise), self.submission.source(self.exercise)
        limits = {"cpu": self.limits.cpu * max(1.0, world / 2)} | limits
        request = Request(
            exercise=self.exercise,
            path=str(path),
            source=source,
            return_lines=return_lines(source),
            drive=by_value(drive, arguments),
            limits=replace(self.limits, **limits),  # type: ignore[arg-type]
            backing=self.backing,
            out_of_reach=self.out_of_reach,
            gpus=gpus,
            ranks=world,
            memory=memory,
        )
        # What the learner's code imports of this takes seconds on a slow machine, in every worker.
        wanted = {*NAMED} & imported_modules(source)
        try:
            with self.server.run(request, wanted=wanted, wait=False) as receive:
                _, report = receive()
        except ServerDied as death:
            raise Refused(
                "crash",
                "killed_checker",
                came=f"the process that watches over your code ended while your code ran. {death}",
                usually="your code sends a signal to its parent process, or to all processes.",
            ) from None
        for member in report["members"]:
            for frame in member["said"]:
                self.server.learn(frame.get("costly", ()))
        common = {"excess": report["excess"], "left": report["left"]}
        endings = [
            Ending(
                member | common,
                self.exercise,
                path,
                request.limits,
                who=f"rank {rank}" if world else None,
            )
            for rank, member in enumerate(report["members"])
        ]
        refuse_bad_endings(endings, report["finding"], report["trace"])
        answer = Answer(
            results=[read(ending) for ending in endings],
            returns=[ending.returns for ending in endings],
            outputs=[ending.output for ending in endings],
            trace=report["trace"],
        )
        self.answers.append(answer)
        return answer


def read(ending: Ending) -> Any:
    """The value that a worker sent.  Raises Refused if our Encoder did not write it."""
    try:
        return decode(ending.report["answer"])
    except Unreadable as error:
        raise ending.refused(
            "crash",
            "broke_checker",
            came=f"after your code had run, its result could not be read. {error}",
            usually="the code changed something that belongs to Python or torch itself.",
        ) from None
