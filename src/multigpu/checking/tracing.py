"""Watches the learner's code while it runs: where it returned, and which forbidden code it called.

Python calls the tracer once for every Python function that starts, in every thread.
"""

import ast
import inspect
import os
import sys
import sysconfig
import threading
import types
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

STANDARD_LIBRARY = sysconfig.get_path("stdlib")
WATCHED = "the exercise"  # in the place of a forbidden name


@dataclass
class Tracer:
    """Notes of one run of an exercise.

    ``path`` is the learner's file; those beside it are the learner's too.  ``return_lines`` comes
    from the function of this name.  ``refused`` maps a file or a folder of forbidden code to the
    name that people know it by.
    """

    path: str
    return_lines: dict[int, int]
    refused: dict[str, str]
    calls: int = 0
    returned: tuple[str, int] | None = None  # file and line of the last return
    used: tuple[str, str, int] | None = None  # forbidden name, file and line of the first use
    # What is known of a code by its id, which is quicker than its hash, and the codes themselves,
    # so that no other one gets the same id.
    _known: dict[int, str | None] = field(default_factory=dict)
    _kept: list[types.CodeType] = field(default_factory=list)
    _returning: dict[int, int] = field(default_factory=dict)  # frame: line of its return statement

    def __post_init__(self) -> None:
        self._folder = os.path.dirname(self.path)

    def watch(self, exercise: Any) -> None:
        """Follow the calls of a function, or of all methods of a class."""
        codes = codes_of(exercise)
        self._kept += codes
        self._known |= {id(code): WATCHED for code in codes}

    def start(self) -> None:
        """Begin in this thread and in all that it will start."""
        threading.settrace(self._call)
        sys.settrace(self._call)

    def stop(self) -> None:
        """End in this thread."""
        sys.settrace(None)
        threading.settrace(None)

    def _call(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        try:
            name = self._known[id(code)]
        except KeyError:
            name = self._look_at(code)
        if name is None:
            return None
        if name == WATCHED:
            self.calls += 1
            return self._inside
        if self.used is None:
            caller = self._caller(frame.f_back)
            if caller is not None:
                self.used = (name, *caller)
        return None

    def _look_at(self, code: types.CodeType) -> str | None:
        """What there is to know of a code that nobody watches: its forbidden name, or nothing."""
        name = self._refused_name(code.co_filename)
        self._kept.append(code)
        self._known[id(code)] = name
        return name

    def _inside(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        file, line = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and file == self.path and line in self.return_lines:
            self._returning[id(frame)] = self.return_lines[line]
        elif event == "return":  # at the end of a `with` block the line is that of the `with`
            self.returned = (file, self._returning.pop(id(frame), line))
        return self._inside

    def _refused_name(self, file: str) -> str | None:
        return next((name for path, name in self.refused.items() if file.startswith(path)), None)

    def _caller(self, frame: types.FrameType | None) -> tuple[str, int] | None:
        """The line of the learner's that led here, if only Python's own library lies between."""
        while frame is not None:
            file = frame.f_code.co_filename
            if os.path.dirname(file) == self._folder:
                return file, frame.f_lineno
            if "-packages" in file or not file.startswith((STANDARD_LIBRARY, "<")):
                return None
            frame = frame.f_back
        return None


@lru_cache
def return_lines(source: str) -> dict[int, int]:
    """Every line of a return statement, with the line on which the statement begins."""
    return {
        line: node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Return)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def codes_of(exercise: Any) -> list[types.CodeType]:
    """The code of a function, or of a class's methods: its own first, then those it inherits.

    A class of the learner's may inherit from another one of the learner's; what comes from
    elsewhere, such as nn.Module, is not the exercise.
    """
    functions = [exercise]
    if isinstance(exercise, type):
        module = exercise.__module__
        own = [kind for kind in exercise.__mro__ if kind.__module__ == module]
        functions = [value for kind in own for value in vars(kind).values()]
    functions = [f.fget if isinstance(f, property) else f for f in functions]
    codes = [getattr(inspect.unwrap(function), "__code__", None) for function in functions]
    return [code for code in codes if isinstance(code, types.CodeType)]


def forbidden_code(names: Iterable[str]) -> dict[str, str]:
    """Where the code of forbidden names lies: a package's folder, or a module's file.

    A forbidden function has no file of its own: it is found by its name alone, or by the trace.
    """
    return {path: name for name in names if (path := _place(name))}


@cache
def _place(name: str) -> str:
    """Found without importing: most forbidden modules are never needed."""
    parent, _, own = name.rpartition(".")
    for folder in getattr(sys.modules.get(parent), "__path__", ()):
        if os.path.isdir(os.path.join(folder, own)):
            return os.path.join(folder, own) + os.sep
        if os.path.isfile(os.path.join(folder, f"{own}.py")):
            return os.path.join(folder, f"{own}.py")
    return ""
