"""A process that a supervisor has forked: the pipes to it, its life, and what was heard from it.

It reports in frames: each phase as it begins, and at the very end that it ended cleanly.
"""

import atexit
import contextlib
import faulthandler
import fcntl
import multiprocessing.util
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from multigpu.ranks import process_tree
from multigpu.ranks.frames import FrameReader, Mouth, Say
from multigpu.ranks.limits import Limits

ROOM = 2**20  # bytes that fit into a mouth: a large result then takes fewer turns
READ = ("mouth", "output", "stack")  # what the leader reads; the rest it holds open


@dataclass(frozen=True)
class Channels:
    """One process's ends, as file descriptors.  It closes all others."""

    mouth: int  # frames to the leader
    output: int  # what its code prints
    stack: int  # where its code stands, when asked or when it dies
    lifeline: int  # closes when the leader is gone
    release: int  # closes when it may leave

    def close(self) -> None:
        """Close these ends: the leader does so once the process has them."""
        for descriptor in vars(self).values():
            os.close(descriptor)


@dataclass
class Ends:
    """The leader's ends."""

    mouth: int
    output: int
    stack: int
    lifeline: int
    release: int

    def let_go(self) -> None:
        """Let the process leave."""
        if self.release >= 0:
            os.close(self.release)
            self.release = -1

    def close(self) -> None:
        """Close all of them."""
        self.let_go()
        for name in (*READ, "lifeline"):
            os.close(getattr(self, name))


def open_channels() -> tuple[Ends, Channels]:
    """New pipes for one process."""
    ours, theirs = {}, {}
    for name in ("mouth", "output", "stack", "lifeline", "release"):
        read, write = os.pipe()
        ours[name], theirs[name] = (read, write) if name in READ else (write, read)
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # the user has too many large pipes
            fcntl.fcntl(theirs["mouth"], fcntl.F_SETPIPE_SZ, ROOM)
    return Ends(**ours), Channels(**theirs)


@dataclass
class Intake:
    """What came out of one pipe: the first bytes, and how many there were."""

    keep: int
    data: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, part: bytes) -> None:
        """Take in one part; beyond ``keep`` bytes it is only counted."""
        self.total += len(part)
        self.data += part[: max(0, self.keep - len(self.data))]

    def text(self) -> str:
        """The kept bytes as text."""
        return self.data.decode(errors="replace")


class Heard:
    """One process, as far as it has been heard: its frames, its output, its stack, its end."""

    def __init__(self, pid: int, ends: Ends, *, token: bytes, limits: Limits) -> None:
        self.pid, self.ends = pid, ends
        self.said: list[dict[str, Any]] = []
        self.answer = b""  # the bytes that came with the phase of this name
        self.status: int | None = None  # once it is gone; negative for a signal
        self.holding = False  # it waits to be let go
        self.output, self.stack = Intake(limits.kept_output), Intake(limits.kept_output)
        self.total = 0  # bytes from all pipes
        self._reader = FrameReader(token, keep=limits.answer)

    def add(self, pipe: str, part: bytes) -> list[dict[str, Any]]:
        """Take in what came out of a pipe; the frames among it."""
        self.total += len(part)
        if pipe != "mouth":
            getattr(self, pipe).add(part)
            return []
        if not part:
            self._reader.close()
            return []
        frames = self._reader.add(part)
        for header, blob in frames:
            self.said.append(header)
            if header["phase"] == "answer":
                self.answer = blob
            self.holding = self.holding or header["phase"] == "holding"
        return [header for header, _ in frames]

    def report(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "status": self.status,
            "said": self.said,
            "foreign": self._reader.foreign,
            "output": self.output.text(),
            "output_bytes": self.output.total,
            "stack": self.stack.text(),
            "answer": len(self.answer),
        }


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
    process_tree.die_with_parent(prctl, leader)
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
