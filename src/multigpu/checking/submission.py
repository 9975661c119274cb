"""A folder with a learner's modules, read once: all checks of one run judge the same text."""

import ast
from dataclasses import dataclass, field
from importlib.util import decode_source
from pathlib import Path

from multigpu.checking.catalog import Exercise
from multigpu.checking.endings import refused_name
from multigpu.checking.names import first_refused_name
from multigpu.checking.verdicts import Refused


@dataclass
class Submission:
    """The modules in one folder, as they were when they were first asked for."""

    folder: Path
    _sources: dict[Path, str] = field(default_factory=dict)

    def path(self, exercise: Exercise) -> Path:
        """The file that holds an exercise."""
        return self.folder / exercise.file

    def source(self, exercise: Exercise) -> str:
        """The text of that file.

        Raises Refused if it is not there, is no Python, or uses what the chapter refuses.
        """
        path = self.path(exercise)
        if path not in self._sources:
            self._sources[path] = read_source(path, exercise)
        source = self._sources[path]
        try:
            found = first_refused_name(source, exercise.function, exercise.chapter.refused)
        except RecursionError as error:
            raise no_python(path, error) from None
        if found is not None:
            name, line = found
            raise refused_name(name, f"{path.name}:{line}", exercise)
        return source


def read_source(path: Path, exercise: Exercise) -> str:
    """The text of a learner's file.  Raises Refused when there is none, or when it is no Python."""
    if path.parent.is_file():
        message = f"{path.parent} is a file. Name the folder that it is in: {path.parent.parent}"
        raise Refused("missing_file", "missing_folder", message)
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
        text = path.read_bytes()
    except OSError as error:
        came = f"came: {path.name} cannot be read: {error.strerror}.\n"
        usually = f"usually: it belongs to another user. `ls -l {path}` shows who may read it."
        raise Refused("missing_file", "unreadable_file", came + usually) from None
    try:
        source = decode_source(text)  # as Python itself: a mark or a comment may name the encoding
    except (SyntaxError, UnicodeDecodeError) as error:
        message = f"{path.name} is no UTF-8 text: {error}"
        raise Refused("crash", "syntax_error", message) from None
    try:
        ast.parse(source)
    except SyntaxError as error:
        raise Refused("crash", "syntax_error", syntax_message(error, path)) from None
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; nested too deep
        raise no_python(path, error) from None
    return source


def no_python(path: Path, error: Exception) -> Refused:
    """The answer to a text that Python cannot take in."""
    return Refused("crash", "syntax_error", f"{path.name} is no Python: {error}")


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
