"""The file that holds the exercises to train with, and what is said where they are not written."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

NEEDED = {
    "dp": ("split", "replicate", "parallel_apply", "gather", "sum_gradients", "broadcast"),
    "ddp": ("BucketedDDP",),
}
FILES = {"dp": "data_parallel", "ddp": "distributed_data_parallel"}


class NotWritten(ValueError):
    """Training came to an exercise that is still to be written."""


class CannotImport(ValueError):
    """The file of the exercises does not even import; the text says where."""


def load_own(folder: Path, mode: str) -> ModuleType:
    """The module of `folder` that has what `mode` needs, imported from its file.

    Raises ValueError where the mode has no exercise, or the folder no such file, and CannotImport
    with the line where importing the file fails.
    """
    refuse_other_modes(mode, str(folder))
    path = (folder / f"{FILES[mode]}.py").resolve()
    if not path.is_file():
        raise ValueError(f"{path} does not exist: mode={mode!r} takes {NEEDED[mode][0]} from it.")
    spec = spec_from_file_location(FILES[mode], path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[FILES[mode]] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last: a random.py beside it hides nothing
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise CannotImport(blame(error, path) or f"{path}: {error}") from error
    return module


def exercise(own: ModuleType, name: str) -> Callable[..., Any]:
    """A function or class of the exercises.  Raises ValueError where there is none."""
    found = getattr(own, name, None)
    if not callable(found):
        raise ValueError(f"{own.__file__} has no {name}: `multigpu check {name}` says more.")
    wanted: Callable[..., Any] = found
    return wanted


@contextlib.contextmanager
def to_be_written(own: ModuleType, name: str) -> Iterator[None]:
    """Turn the NotImplementedError of a starter into words about what to do next."""
    try:
        yield
    except NotImplementedError as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        if place.filename != own.__file__:  # of PyTorch, which has no such operation
            raise
        raise NotWritten(
            f"{name} is not written yet ({name_of(own)}:{place.lineno}). Write it, then "
            f"`multigpu check {own.__name__}.{name}`; or train with PyTorch's, without --with."
        ) from error


def blame(error: BaseException, path: Path) -> str | None:
    """An error with the line of the exercises that it came through last; None: it did not."""
    said = traceback.format_exception_only(error)[-1].strip()
    if isinstance(error, SyntaxError) and error.filename == str(path):  # nothing has run yet
        return f"{path}:{error.lineno}: {(error.text or '').strip()}\n{said}"
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if frame.filename == str(path):
            return f"{path}:{frame.lineno}, in {frame.name}: {frame.line}\n{said}"
    return None


def name_of(own: ModuleType) -> str:
    """``exercises/data_parallel.py``."""
    path = Path(str(own.__file__))
    return f"{path.parent.name}/{path.name}"


def refuse_other_modes(mode: str, where: str) -> None:
    """Raise ValueError where no exercise takes the place of what `mode` uses."""
    if mode not in FILES:
        raise ValueError(
            f"mode={mode!r} uses nothing of {where}: choose dp, for example with gpus=2 "
            "(data_parallel.py), or, started with torchrun, ddp (distributed_data_parallel.py)."
        )
