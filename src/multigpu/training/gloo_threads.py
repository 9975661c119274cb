"""Gloo's threads, which must have let go of Python before Python ends.

A message that backward sends (DDP and FSDP do) carries a Python object, the context of that
backward. The thread of gloo that has sent it drops it a moment after the message is done, and for
that it needs the interpreter's lock. Python ends a thread that asks for the lock when the
interpreter is ending; that unwinds the thread through a C++ destructor, and the process aborts:
"terminate called without an active exception", exit code -6, after all results were there.

`destroy_process_group` does not help where anything still refers to the group, as the wrappers of
DDP and FSDP do. So whoever leaves waits until these threads sleep. See PyTorch's pull request
179291 and its issue 190489.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

NAME = "pt_gloo_runloop"
TASKS = Path("/proc/self/task")
PAUSE = 0.02  # seconds: who waits for the interpreter's lock wakes every 5 ms and counts as awake
PATIENCE = 5.0  # seconds
ELSEWHERE = 0.2  # seconds, where there is no /proc


def let_gloo_finish() -> bool:
    """Return when no thread of gloo has anything to do; False where that does not come about.

    A thread sleeps when it has not been switched to between two looks. Between them this one
    sleeps, so that the lock is free for all who want it.
    """
    if not TASKS.is_dir():
        time.sleep(ELSEWHERE)
        return True
    until = time.monotonic() + PATIENCE
    seen = states()
    while seen:
        time.sleep(PAUSE)
        now = states()
        if now == seen and all(asleep for asleep, _ in now.values()):
            return True
        if time.monotonic() > until:
            return False
        seen = now
    return True


def states() -> dict[str, tuple[bool, int]]:
    """Of each thread of gloo: whether it sleeps, and how often it was switched to."""
    found = {}
    for task in TASKS.iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if (task / "comm").read_text().strip() == NAME:
                lines = (task / "status").read_text().splitlines()
                said = dict(line.split(":", 1) for line in lines if ":" in line)
                switches = [value for name, value in said.items() if name.endswith("ctxt_switches")]
                asleep = said["State"].strip().startswith("S")
                found[task.name] = asleep, sum(int(value) for value in switches)
    return found
