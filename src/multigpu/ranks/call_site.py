"""Which line of the program a call of torch.distributed comes from, and by what name it went."""

import os
import sys
import threading
import types
from dataclasses import dataclass
from functools import cache

from multigpu.ranks.calls import GROUPED
from multigpu.ranks.errors import PACKAGE_FOLDERS

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
def _in_torch(file: str) -> str | None:
    """The path below torch's folder; "" for other code that is not the program's, else None."""
    import torch

    folder = os.path.join(os.path.dirname(torch.__file__), "")
    if file.startswith(folder):
        return file.removeprefix(folder)
    between = file == threading.__file__ or os.path.basename(file) in BETWEEN
    return "" if between or file.startswith((*PACKAGE_FOLDERS, "<frozen")) else None


def origin() -> Origin:
    """Search the stack for the first line that is neither torch's nor this package's.

    A call that C++ makes, as DistributedDataParallel does during backward, comes from the line that
    called ``backward()``. A call that is itself the target of a thread comes from the line that
    started the thread.
    """
    place, within = _first_line(sys._getframe(1))
    if place is None:
        place = getattr(threading.current_thread(), STARTED_AT, None)
    if place is None:  # autograd computes what is on GPUs in its own threads, and backward() waits
        for frame in sys._current_frames().values():
            line, waiting = _first_line(frame)
            if line is not None and waiting and waiting[0][0].startswith("autograd"):
                place, within = line, within or waiting
    place = place or Origin("", 0, "", "")
    return Origin(place.file, place.line, place.function, *_public_name(within))


Within = tuple[tuple[str, str], ...]  # torch's frames: the file below torch's folder, the function


def _first_line(frame: types.FrameType | None) -> tuple[Origin | None, Within]:
    """The first line, from here outwards, of code that is not torch's, and torch's frames in it."""
    within: list[tuple[str, str]] = []
    while frame is not None:
        code = frame.f_code
        file = _in_torch(code.co_filename)
        if file is None:
            return Origin(code.co_filename, frame.f_lineno, code.co_name, ""), tuple(within)
        if file:
            within.append((file, code.co_name))
        frame = frame.f_back
    return None, tuple(within)


@cache
def _public_name(within: Within) -> tuple[str, bool]:
    """The name by which torch was called, and whether C++ called in the middle of a backward.

    The name is that of torch's outermost frame, if it means something; but messages that go
    together say so, inside a step of torch.distributed.pipelining, too.
    """
    folders = [file for file, _ in within]
    if any(f.startswith(os.path.join("distributed", "fsdp")) for f in folders):
        return "fully_shard", False
    if os.path.join("distributed", "algorithms", "join.py") in folders:
        return "join", False
    in_ddp = os.path.join("nn", "parallel", "distributed.py") in folders
    called_by_cpp = bool(folders) and folders[0].startswith("autograd")
    if in_ddp or called_by_cpp:
        return "DistributedDataParallel", called_by_cpp
    names = [name for _, name in within if name not in WRAPPERS]
    return GROUPED if GROUPED in names else names[-1] if names else "", False
