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

from multigpu.ranks.calls import LATER
from multigpu.ranks.frames import FrameReader, FrameWriter, Write
from multigpu.ranks.limits import Limits
from multigpu.ranks.process_tree import die_with_parent

ROOM = 2**20  # bytes that fit into the pipe of frames: a large result then takes fewer turns
READ = ("frames", "output", "stack")  # what the supervisor reads; the rest it holds open
BROKEN = 70  # exit code of a process that could not report
SHOWN_FAULT = 2000  # characters of a traceback of ours
KEPT_FRAMES = 200_000  # of one process: beyond that the oldest calls are forgotten

Body = Callable[[int, Write], None]  # gets the number of the process, from 0


@dataclass
class PipeEnds:
    """One side of the pipes between a supervisor and a process, as file descriptors."""

    frames: int  # what the process reports
    output: int  # what its code prints
    stack: int  # where its code is, when asked or when it dies
    lifeline: int  # closes when the supervisor is gone
    release: int  # closes when the process may leave

    def close(self, *names: str) -> None:
        """Close these ends, or all that are open."""
        for name in names or vars(self):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)


def open_pipes() -> tuple[PipeEnds, PipeEnds]:
    """New pipes for one process: the supervisor's ends, and those of the process."""
    ours, theirs = {}, {}
    for name in ("frames", "output", "stack", "lifeline", "release"):
        read, write = os.pipe()
        ours[name], theirs[name] = (read, write) if name in READ else (write, read)
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # the user has too many large pipes
            fcntl.fcntl(theirs["frames"], fcntl.F_SETPIPE_SZ, ROOM)
    return PipeEnds(**ours), PipeEnds(**theirs)


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


class ChildProcess:
    """One process, as far as its supervisor has heard it: frames, output, stack, end."""

    def __init__(self, pid: int, ends: PipeEnds, *, token: bytes, limits: Limits) -> None:
        self.pid, self.ends = pid, ends
        self.said: list[dict[str, Any]] = []  # its frames
        self.answer = b""  # the bytes that came with the phase of this name
        self.status: int | None = None  # once it is gone; negative for a signal
        self.holding = False  # it waits to be let go
        self.output, self.stack = Intake(limits.kept_output), Intake(limits.kept_output)
        self.total = 0  # bytes from all pipes
        self._reader = FrameReader(token, keep=limits.answer)

    def add(self, pipe: str, part: bytes) -> list[dict[str, Any]]:
        """Take in what came out of a pipe; the frames among it."""
        self.total += len(part)
        if pipe != "frames":
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
        if len(self.said) > KEPT_FRAMES:
            self._forget_the_oldest_calls()
        return [header for header, _ in frames]

    def _forget_the_oldest_calls(self) -> None:
        """A program may communicate for days: its trace keeps what came last."""
        half = len(self.said) // 2
        about_calls = ("call", "span", *LATER)
        other = [frame for frame in self.said[:half] if frame["phase"] not in about_calls]
        self.said[:half] = other

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


def live(
    body: Body,
    number: int,
    pipes: PipeEnds,
    *,
    token: bytes,
    limits: Limits,
    prctl: Any,
    supervisor: int,
) -> NoReturn:
    """Run ``body(number, write)`` and end the process.  Called right after the fork."""
    die_with_parent(prctl, supervisor)
    _enter_own_world(pipes, limits)
    write = FrameWriter(pipes.frames, token).write
    leave, own_pid, pid = os._exit, os.getpid, os.getpid()

    def reporting_exit(status: int) -> NoReturn:
        frame = sys._getframe(1)
        where = [frame.f_code.co_filename, frame.f_lineno]
        write({"phase": "left", "status": int(status), "where": where, "time": time.monotonic()})
        leave(status)

    os._exit = reporting_exit
    thread = threading.get_native_id()
    write({"phase": "started", "pid": pid, "thread": thread, "time": time.monotonic()})
    try:
        body(number, write)
        write({"phase": "ending"})
        # As Python ends a program: wait for its threads, then run what was registered.
        threading._shutdown()  # type: ignore[attr-defined]
        multiprocessing.util._exit_function()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        write({"phase": "holding"})
        if own_pid() == pid:  # a forked child that went on to here has nobody to wait for
            os.read(pipes.release, 1)  # others may still need what this process has to give
        write({"phase": "ended"})
        leave(0)
    except BaseException:  # a fault of ours, or the body's code broke what we use
        write({"phase": "fault", "traceback": traceback.format_exc()[-SHOWN_FAULT:]})
    finally:
        leave(BROKEN)


def _enter_own_world(pipes: PipeEnds, limits: Limits) -> None:
    """Own session, own descriptors, nothing to read, limits that the kernel holds."""
    with contextlib.suppress(PermissionError):  # it leads its session already
        os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, pipes.output), (2, pipes.output)):
        os.dup2(source, target)
    keep = sorted({pipes.frames, pipes.stack, pipes.lifeline, pipes.release})
    for low, high in zip([2, *keep], [*keep, 65536], strict=True):
        os.closerange(low + 1, high)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable(pipes.stack, all_threads=True)
    faulthandler.register(signal.SIGUSR1, pipes.stack, all_threads=True)
    if sys.platform != "linux":  # there the kernel does it: process_tree.die_with_parent
        threading.Thread(target=_end_with, args=(pipes.lifeline,), daemon=True).start()
    atexit._clear()  # what the server's own libraries registered takes 60 ms
    limit(resource.RLIMIT_CORE, 0)
    if limits.file_size is not None:
        limit(resource.RLIMIT_FSIZE, limits.file_size)


def _end_with(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def limit(kind: int, value: int) -> None:
    """Have the kernel hold this process to ``value``, or to what it is held to already."""
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))
