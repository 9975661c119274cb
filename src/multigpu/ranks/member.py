"""The life of a process that a leader has forked: its own world, its body, a clean end.

It reports in frames: each phase as it begins, and at the very end that it ended cleanly.
"""

import atexit
import contextlib
import faulthandler
import multiprocessing.util
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from multigpu.ranks import family
from multigpu.ranks.channels import Channels
from multigpu.ranks.frames import Mouth, Say
from multigpu.ranks.limits import Limits

BROKEN = 70  # exit code of a process that could not report
SHOWN_FAULT = 2000  # characters of a traceback of ours
Body = Callable[[int, Say], None]  # gets the number of the process, from 0, and its mouth


def live(
    body: Body,
    number: int,
    channels: Channels,
    *,
    token: bytes,
    limits: Limits,
    prctl: Any,
    leader: int,
) -> NoReturn:
    """Run ``body(number, say)`` and end the process.  Called right after the fork."""
    family.die_with_parent(prctl, leader)
    enter_own_world(channels, limits)
    mouth = Mouth(channels.mouth, token)
    leave, own_pid, pid = os._exit, os.getpid, os.getpid()
    os._exit = _reporting_exit(mouth, leave)  # type: ignore[assignment]
    thread = threading.get_native_id()
    mouth.say({"phase": "started", "pid": os.getpid(), "thread": thread, "time": time.monotonic()})
    try:
        body(number, mouth.say)
        mouth.say({"phase": "ending"})
        finish()
        mouth.say({"phase": "holding"})
        if own_pid() == pid:  # a forked child that went on to here has nobody to wait for
            os.read(channels.release, 1)  # others may still need what this process has to give
        mouth.say({"phase": "ended"})
        leave(0)
    except BaseException:  # a fault of ours, or the body's code broke what we use
        mouth.say({"phase": "fault", "traceback": traceback.format_exc()[-SHOWN_FAULT:]})
    finally:
        leave(BROKEN)


def enter_own_world(channels: Channels, limits: Limits) -> None:
    """Own session, own descriptors, nothing to read, limits that the kernel holds."""
    with contextlib.suppress(PermissionError):  # it leads its session already
        os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, channels.output), (2, channels.output)):
        os.dup2(source, target)
    keep = sorted({channels.mouth, channels.stack, channels.lifeline, channels.release})
    for low, high in zip([2, *keep], [*keep, 65536], strict=True):
        os.closerange(low + 1, high)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable(channels.stack, all_threads=True)
    faulthandler.register(signal.SIGUSR1, channels.stack, all_threads=True)
    if sys.platform != "linux":
        threading.Thread(target=_end_with, args=(channels.lifeline,), daemon=True).start()
    atexit._clear()  # what the server's own libraries registered takes 60 ms
    limit(resource.RLIMIT_CORE, 0)
    if limits.file_size is not None:
        limit(resource.RLIMIT_FSIZE, limits.file_size)


def limit(kind: int, value: int) -> None:
    """Have the kernel hold this process to ``value``, or to what it is held to already."""
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _end_with(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def _reporting_exit(mouth: Mouth, leave: Callable[[int], NoReturn]) -> Callable[[int], NoReturn]:
    """``os._exit`` for the body's code: it tells from which line, then it does exit."""

    def _exit(status: int) -> NoReturn:
        frame = sys._getframe(1)
        where = [frame.f_code.co_filename, frame.f_lineno]
        said = {"phase": "left", "status": int(status), "where": where, "time": time.monotonic()}
        mouth.say(said)
        leave(status)

    return _exit


def finish() -> None:
    """End as Python ends a program: wait for its threads, then run what was registered."""
    threading._shutdown()  # type: ignore[attr-defined]
    multiprocessing.util._exit_function()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
