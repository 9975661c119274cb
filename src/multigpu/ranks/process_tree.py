"""The processes that descend from this one, as the system shows them.

Linux gives an orphaned grandchild to the nearest ancestor that asked for it, so no process can
escape. On other systems orphans are found by a mark in their environment.
"""

import contextlib
import ctypes
import itertools
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence

import psutil

# In the environment of a server, inherited by whatever it starts: with what the names of its runs'
# folders begin. A run inside a rank has its folder in that of the outer run.
MARK = "MULTIGPU_RUN"
RUN = "multigpu-ranks-"  # once in a mark for each run around it
# Bound here: loading a library after a fork is not safe.
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # from linux/prctl.h
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # by which people end a program
ENDING = 15.0  # seconds for killed processes to be gone: a busy machine takes its time


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    if LIBC:
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends."""
    if LIBC:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before we could ask
        os._exit(1)


def descendants() -> list[psutil.Process]:
    """Every living process that comes from this one."""
    me = os.getpid()
    if sys.platform == "linux" and os.path.exists(f"/proc/{me}/task/{me}/children"):
        # psutil would read the whole table of processes, and a supervisor looks every 50 ms.
        pids: list[int] = []
        for parent in itertools.chain([me], pids):  # it comes to those that are found, too
            for thread in threads_of(parent):
                with contextlib.suppress(OSError), open(f"{thread}/children") as file:
                    pids += map(int, file.read().split())
    else:
        found = psutil.Process().children(recursive=True)
        if sys.platform != "linux":
            found += marked(os.environ.get(MARK, ""))
        pids = list({process.pid for process in found} - {me})
    living = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living


def threads_of(pid: int) -> list[str]:
    """The folders of a process's threads, any of which may end meanwhile; Linux has them."""
    folder = f"/proc/{pid}/task"
    with contextlib.suppress(OSError):
        return [f"{folder}/{name}" for name in os.listdir(folder)]
    return []


def survivors() -> list[psutil.Process]:
    """The living descendants, once those that have ended are collected."""
    if reap() and sys.platform == "linux":  # no child, so no orphan either: they come to us
        return []
    return descendants()


def reap() -> bool:
    """Collect every child that has ended.  True when no child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def left_behind(seconds: float) -> list[str]:
    """The names of processes that were started and still exist ``seconds`` later."""
    deadline = time.monotonic() + seconds
    while True:
        left = survivors()
        if not left or time.monotonic() > deadline:
            return [process.name() for process in left]
        time.sleep(0.01)


def end_all(*groups: int) -> list[str]:
    """Kill these process groups and every descendant; wait until they are gone.

    Returns those that still exist after ENDING seconds, "sh (process 4711)" for example: a process
    that waits in the kernel, for a disk or a device, ends only when that responds.
    """
    deadline = time.monotonic() + ENDING
    while True:
        for group in groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        left = survivors()
        if not left and reap():
            return []
        kill(left)
        if time.monotonic() > deadline:
            return named(left)
        time.sleep(0.002)


def kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def named(processes: Iterable[psutil.Process]) -> list[str]:
    """Names by which people can find them: "sh (process 4711)"."""
    names = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            names.append(f"{process.name()} (process {process.pid})")
    return names


def warn_of(unended: Sequence[str]) -> None:
    """Tell the caller which processes could not be ended."""
    if unended:
        text = f"killed, but still running after {ENDING:g} s: {', '.join(unended)}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


@contextlib.contextmanager
def leaving_no_process() -> Iterator[None]:
    """End processes that were started inside and still run: kernels, terminals, a stopped build.

    A signal that ends a process at once would leave them, so here it is a ``KeyboardInterrupt``.
    They are killed: a build that executes notebooks takes the gentle signals for the cell's.
    """
    adopt_orphans()
    before = descendants()
    usual = {ending: signal.signal(ending, signal.default_int_handler) for ending in ENDING_SIGNALS}
    try:
        yield
    finally:
        for ending in ENDING_SIGNALS:
            signal.signal(ending, signal.SIG_IGN)  # an impatient second Ctrl-C
        for _ in range(10):  # one may answer the loss of a child with a new one
            if not (started := [each for each in descendants() if each not in before]):
                break
            kill(started)
            psutil.wait_procs(started, timeout=5)
        for ending, handler in usual.items():
            signal.signal(ending, handler)


def marked(mark: str) -> list[psutil.Process]:
    """Every process that comes from the server with this mark, the server itself included."""
    found = environments() if mark else []
    return [process for process, its in found if its.get(MARK, "").startswith(mark)]


def environments() -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """All processes with their environments, as far as they can be read."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # other people's processes hide theirs
            yield process, process.environ()


def end_marked(mark: str) -> None:
    """Kill every process that comes from a server of ours with this mark; wait until all are gone.

    A process during exec has no environment, which may last long on a busy machine. Until it has
    one it may be one of them, unless it is older than this process or belongs to the kernel.
    """
    deadline, began = time.monotonic() + ENDING, psutil.Process().create_time()
    while True:
        left, undecided = [], False
        for process, its in environments():
            if its.get(MARK, "").startswith(mark):
                left.append(process)
            elif not its:
                with contextlib.suppress(psutil.Error):  # it may be gone by now
                    undecided |= process.create_time() > began and process.memory_info().vms > 0
        kill(left)
        if not (left or undecided):
            return None
        if time.monotonic() > deadline:
            return warn_of(named(left))
        time.sleep(0.01)


def runnable(pid: int) -> bool:
    """Whether a thread of a process runs, or waits for a core or for the disk."""
    if sys.platform != "linux":
        return bool(psutil.Process(pid).status() == psutil.STATUS_RUNNING)
    for thread in threads_of(pid):
        with contextlib.suppress(OSError), open(f"{thread}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] in "RD":
                return True
    return False
