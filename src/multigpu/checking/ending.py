"""A worker's report, read as sentences."""

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from importlib.util import decode_source
from pathlib import Path
from typing import Any

from multigpu.checking.catalog import Exercise
from multigpu.checking.verdicts import Refused, Status, printable

UNREADABLE = (OSError, UnicodeDecodeError, SyntaxError)  # a file that is gone, or no Python


@dataclass(frozen=True)
class Ending:
    """How one run of an exercise ended.  ``report`` is what the server said about the worker."""

    report: dict[str, Any]
    exercise: Exercise
    path: Path
    limits: dict[str, Any]
    who: str | None = None  # "rank 2", where several workers ran

    @cached_property
    def phases(self) -> dict[str, dict[str, Any]]:
        """What the worker said, by phase."""
        return {header["phase"]: header for header in self.report["said"]}

    @property
    def output(self) -> str:
        """What the learner's code printed."""
        return printable(self.report["output"])

    @property
    def where(self) -> str:
        """The line of the last return of the exercise, or of its definition."""
        notes = self.phases["returning"]
        found = notes["returned"] or notes["line"]
        return self.place(*found) if found else self.path.name

    def place(self, file: str, line: int) -> str:
        """``data_parallel.py:41``, seen from the folder of the submission."""
        return f"{Path(file).name}:{line}"

    def is_learners(self, file: str) -> bool:
        """Whether a file is the learner's module, or lies beside it."""
        return Path(file).parent == self.path.parent

    def line(self, file: str, line: int, function: str) -> str:
        """``data_parallel.py:41 in split: return chunks``."""
        try:
            code = decode_source(Path(file).read_bytes()).splitlines()[line - 1].strip()
        except (*UNREADABLE, IndexError):
            code = ""
        return f"{self.place(file, line)} in {function}" + (f": {code}" if code else "")

    def code(self, file: str, line: int) -> str:
        """The source of the function that holds a line."""
        try:
            source = decode_source(Path(file).read_bytes())
            functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]
        except (*UNREADABLE, ValueError, RecursionError):
            return ""
        around = [n for n in functions if n.lineno <= line <= (n.end_lineno or n.lineno)]
        return ast.unparse(max(around, key=lambda n: n.lineno)) if around else ""

    @property
    def stood(self) -> str:
        """The learner's line in the stack that faulthandler wrote: the main thread's first."""
        threads = self.report["stack"].split("\n\n")
        threads.sort(key=lambda thread: "Current thread" not in thread)
        for thread in threads:
            for file, line, function in re.findall(r'File "(.+?)", line (\d+) in (.+)', thread):
                if self.is_learners(file):
                    return self.line(file, int(line), function)
        return ""

    def refused(self, status: Status, message_id: str, message: str) -> Refused:
        """The exception that ends the check."""
        if self.who is not None:
            message = message.replace("came: ", f"came: {self.who}: ", 1)
        return Refused(status, message_id, message, output=self.output)
