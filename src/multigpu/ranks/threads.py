"""What the threads of a rank are doing, seen from outside.

A thread that waits on a lock without a time limit cannot go on unless another thread opens it. One
that waits for a set time, for another process or for a file, or computes, may go on without this
process. The difference decides whether silence is a deadlock. Linux tells it in
``/proc/PID/task/TID/syscall`` (to a parent process); where that cannot be read, every thread may
go on, and a deadlock that hides behind one is left to the timeout.
"""

import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

_CALLS = {  # numbers of system calls: (futex, those that sleep for a set time)
    "x86_64": ("202", ("35", "230")),
    "aarch64": ("98", ("101", "115")),
}
FUTEX, SLEEPS = _CALLS.get(platform.machine(), ("", ()))
AWAKE = ("running", "-1")  # -1: in no call and off its core, while a page comes or it is stopped
EXITING = 4  # flag of a thread that is on its way out
PRIVATE = 128  # flag of a futex that no other process can open; multiprocessing's have it not


class Threads(Protocol):
    """How a `Watch` asks about threads."""

    def may_act(self, rank: int, thread: int) -> bool:
        """Whether this thread is there, and may go on without another thread's help."""

    def others_work(self, rank: int, known: set[int]) -> bool:
        """Whether a thread other than `known` computes, or sleeps for a set time."""

    def dying(self, rank: int) -> bool:
        """Whether the process is about to be gone: it was killed, or has left."""


class SystemThreads:
    """The threads of the ranks with these process ids, as the system sees them."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._sleeps: dict[tuple[int, int], Any] = {}  # as they were found last

    def may_act(self, rank: int, thread: int) -> bool:
        """Whether this thread is there, and may go on without another thread's help.

        Two looks have to find it in the same sleep. Threads take turns through locks, too, and what
        one look sees of several threads was not so at one moment.
        """
        pid = self._pids[rank]
        doing = _doing(pid, thread)
        if doing is None:
            return False
        number, *arguments = doing
        if number != FUTEX or len(arguments) < 4:
            return True
        _, operation, _, limit = (int(argument, 16) for argument in arguments[:4])
        if limit != 0 or not operation & PRIVATE:
            return True
        sleep, before = (doing, _turns(pid, thread)), self._sleeps.get((rank, thread))
        self._sleeps[rank, thread] = sleep
        return sleep != before

    def others_work(self, rank: int, known: set[int]) -> bool:
        """Whether a thread other than `known` computes, or sleeps for a set time."""
        pid = self._pids[rank]
        with suppress(OSError):
            others = {int(name) for name in os.listdir(f"/proc/{pid}/task")} - known
            found = (_doing(pid, thread) for thread in others)
            return any(doing and doing[0] in (*AWAKE, *SLEEPS) for doing in found)
        return False

    def dying(self, rank: int) -> bool:
        """Whether the process is about to be gone: it was killed, or has left.

        All its threads have to end first, and on a busy machine each waits for its turn.
        """
        with suppress(OSError), open(f"/proc/{self._pids[rank]}/stat") as file:
            state, *numbers = file.read().rpartition(")")[2].split()
            return state in "ZX" or bool(int(numbers[5]) & EXITING)
        return False


def _turns(pid: int, thread: int) -> list[str]:
    """How often a thread has given up its core, of itself and otherwise."""
    with suppress(OSError), open(f"/proc/{pid}/task/{thread}/status") as file:
        return [line for line in file if "ctxt_switches" in line]
    return []


def _doing(pid: int, thread: int) -> list[str] | None:
    """The system call that a thread is in, with its arguments; None if the thread is gone."""
    folder = f"/proc/{pid}/task/{thread}"
    try:
        with open(f"{folder}/syscall") as file:
            return file.read().split() or ["unknown"]
    except OSError:
        there = os.path.isdir(folder) or not os.path.isdir("/proc/self")
        return ["unknown"] if there else None
