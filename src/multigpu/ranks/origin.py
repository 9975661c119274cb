"""Where a call comes from: the line of the user's own code, and the name that it called there."""

from __future__ import annotations

import os
import sys
import threading
import types
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
BETWEEN = ("contextlib.py", "functools.py", "typing_extensions.py", "warnings.py")  # of decorators
STARTED_AT = "_multigpu_started_at"  # of a thread: the Origin of its start
WRAPPERS = ("wrapper", "decorate_context", "inner", "func_wrapper", "__torch_function__")


@dataclass(frozen=True)
class Origin:
    """``via`` is the public name, for example "all_gather_object"; empty if there is none."""

    file: str
    line: int
    function: str
    via: str
    called_by_cpp: bool = False  # by the reducer of DistributedDataParallel, during backward


@cache
def _torch() -> str:
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return os.path.dirname(spec.origin) + os.sep


def origin() -> Origin:
    """Look up the stack for the first line that is neither torch's nor ours.

    A call that C++ makes, as DistributedDataParallel does during backward, comes from the line
    that called ``backward()``. One that is itself the target of a thread comes from the line that
    started the thread.
    """
    frame: types.FrameType | None = sys._getframe(1)
    within: list[types.FrameType] = []  # torch's own frames, from the inside out
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_torch()):
            within.append(frame)
        elif not _between(file):
            name = frame.f_code.co_name
            return Origin(file, frame.f_lineno, name, *_public_name(within))
        frame = frame.f_back
    started = getattr(threading.current_thread(), STARTED_AT, Origin("", 0, "", ""))
    return Origin(started.file, started.line, started.function, *_public_name(within))


def _between(file: str) -> bool:
    """Whether this is no code of the user's, nor torch's."""
    return (
        file.startswith((HERE, "<frozen"))
        or file == threading.__file__
        or os.path.basename(file) in BETWEEN
    )


def _public_name(within: list[types.FrameType]) -> tuple[str, bool]:
    """The name by which torch was called, and whether C++ called in the middle of a backward.

    The name is that of torch's outermost frame, if it means something.
    """
    folders = [frame.f_code.co_filename.removeprefix(_torch()) for frame in within]
    if any(f.startswith(os.path.join("distributed", "fsdp")) for f in folders):
        return "fully_shard", False
    if os.path.join("distributed", "algorithms", "join.py") in folders:
        return "join", False
    in_ddp = os.path.join("nn", "parallel", "distributed.py") in folders
    called_by_cpp = bool(folders) and folders[0].startswith("autograd")
    if in_ddp or called_by_cpp:
        return "DistributedDataParallel", called_by_cpp
    names = [f.f_code.co_name for f in within if f.f_code.co_name not in WRAPPERS]
    return (names[-1] if names else ""), False
