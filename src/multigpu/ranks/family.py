"""The processes that descend from this one: how busy they are, and how to end all of them.

Linux hands an orphaned grandchild to the nearest ancestor that asked for it, so nothing can
escape.  Elsewhere those that fled are found by a mark in their environment.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

# In the environment of the server, inherited by whatever it starts.  A server that one of its ranks
# starts has "mark.its own".
MARK = "MULTIGPU_RUN"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # from linux/prctl.h


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(prctl: Callable[..., int] | None, parent: int) -> None:
    """Let the kernel kill this process when its parent ends.

    ``prctl`` is bound before the fork: loading a library afterwards is not safe.
    """
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before we could ask
        os._exit(1)


def bind_prctl() -> Callable[..., int] | None:
    """The C function ``prctl`` where the system has it."""
    return ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def descendants() -> list[psutil.Process]:
    """Every living process that comes from this one."""
    me = psutil.Process()
    found = {process.pid: process for process in me.children(recursive=True)}
    if sys.platform != "linux":
        found |= {process.pid: process for process in marked(os.environ.get(MARK, ""))}
        found.pop(me.pid, None)
    return [process for process in found.values() if _alive(process)]


def survivors() -> list[psutil.Process]:
    """The living descendants, once those that have ended are collected."""
    if reap() and sys.platform == "linux":  # no child, so no orphan either: they come to us
        return []
    return descendants()


def marked(mark: str) -> list[psutil.Process]:
    """Every process that comes from the server with this mark, the server itself included."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # other people's processes hide theirs
            if mark and f"{process.environ().get(MARK, '')}.".startswith(f"{mark}."):
                found.append(process)
    return found


def end_marked(mark: str) -> None:
    """Kill every process that comes from the server with this mark; wait until all are gone.

    A process that is just becoming another program has no environment for a moment. So we wait
    until no process is in that state, and believe only the second look that finds none.
    """
    deadline, empty_looks = time.monotonic() + 5, 0
    while empty_looks < 2 and time.monotonic() < deadline:
        left = marked(mark)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        empty_looks = 0 if left or any(map(_becoming, psutil.process_iter())) else empty_looks + 1
        time.sleep(0.01)


def _becoming(process: psutil.Process) -> bool:
    """Whether it is between two programs: it has neither arguments nor environment yet."""
    try:
        kernel_thread = 2 in (process.pid, process.ppid())  # Linux: they never have any
        return not (kernel_thread or process.cmdline() or process.environ())
    except psutil.Error:  # somebody else's, ended, or a zombie
        return False


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def left_behind(farewell: float) -> list[str]:
    """The names of processes that were started and are there ``farewell`` seconds later."""
    deadline = time.monotonic() + farewell
    while True:
        left = survivors()
        if not left or time.monotonic() > deadline:
            return [process.name() for process in left]
        time.sleep(0.01)


def end_all(*leaders: int) -> None:
    """Kill the process groups of ``leaders`` and every descendant; wait until they are gone."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        for leader in leaders:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(leader, signal.SIGKILL)
        left = survivors()
        if not left and reap():
            return
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.002)


def reap() -> bool:
    """Collect every child that has ended.  True when no child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


@dataclass(frozen=True)
class Signs:
    """What a family of processes does at one moment."""

    cpu: float  # seconds used so far, by living members
    memory: int  # bytes
    runnable: bool  # some thread runs, waits for a core or for the disk
    members: int


def signs() -> Signs:
    """The vital signs of all descendants together."""
    cpu, memory, awake, family = 0.0, 0, False, descendants()
    for process in family:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            cpu += times.user + times.system
            cpu += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
            memory += own_memory(process)
            awake = awake or runnable(process)
    return Signs(cpu, memory, awake, len(family))


def own_memory(process: psutil.Process) -> int:
    """The bytes of a process that are no part of a file (on macOS: all that are resident)."""
    memory = process.memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))


def runnable(process: psutil.Process) -> bool:
    """Whether a thread of a process runs, or waits for a core or for the disk."""
    if sys.platform != "linux":
        return bool(process.status() == psutil.STATUS_RUNNING)
    for stat in Path(f"/proc/{process.pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            if stat.read_text().rpartition(")")[2].split()[0] in "RD":
                return True
    return False
