"""Starts the processes of one run, watches them from outside, and ends whatever is left of them.

    report = Supervisor(4, body, limits=UNLIMITED, caller=connection, watch=Watch(4, …)).run()

This process has one thread and adopts orphans (``adopt_orphans``), so that nothing that its
processes start can escape. They report in frames: the beginning of each phase, and at the very end
that they ended cleanly.
"""

import atexit
import contextlib
import faulthandler
import fcntl
import multiprocessing.util
import os
import resource
import secrets
import selectors
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import psutil

from multigpu.ranks import process_tree
from multigpu.ranks.calls import FOLLOW_UP_PHASES
from multigpu.ranks.errors import Finding
from multigpu.ranks.frames import FrameReader, FrameWriter, Write
from multigpu.ranks.proof import Watch
from multigpu.ranks.resource_monitor import (
    UNLIMITED,
    Excess,
    Limits,
    ResourceMonitor,
    own_memory,
    resource_use,
)
from multigpu.ranks.state import SystemThreads

GLANCE = 0.02  # seconds between two looks at what the ranks have said
LOOK = 0.05  # seconds between two looks at the resources in use
CLOSING = 0.002  # seconds between two looks at processes that have closed a pipe
SHORT = 0.2  # seconds: in a run that takes longer, ...
PAUSE = 0.02  # ... seconds in which the ranks have the cores; then all that they said is read
MUCH = 2**15  # bytes: no pause while they send so much at a time, as large results
DUMP = 2.0  # seconds for processes that are stuck to write down where they are
BUSY_DUMP = 20.0  # the same for one that waits for a core of a busy machine
ROOM = 2**20  # bytes that fit into the pipe of frames: a large result then takes fewer turns
# Frames that only the watch needs, and at once; there may be very many of them.
FOR_THE_WATCH = (
    *("call", "span", *FOLLOW_UP_PHASES),
    *("thread_started", "thread_ended", "thread_raised", "joining", "joined"),
)
BROKEN = 70  # exit code of a process that could not report
SHOWN_FAULT = 2000  # characters of a traceback of ours

Body = Callable[[int, Write], None]  # gets the number of the process, from 0


class Supervisor:
    """The processes of one run, from their start until nothing of them is left.

    ``body(number, write)`` runs in ``count`` processes. ``watch`` gets all their frames and may
    find that the run cannot continue. With ``tell`` the caller gets their output at once:
    ("output", number, bytes).
    """

    def __init__(
        self,
        count: int,
        body: Body,
        *,
        limits: Limits,
        caller: Connection,
        watch: Watch | None = None,
        tell: bool = False,
    ) -> None:
        self._count, self._body, self._limits = count, body, limits
        self._caller, self._watch, self._tell = caller, watch, tell
        self._began = time.monotonic()
        self._closing = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(caller, selectors.EVENT_READ, None)
        self._children: list[ChildProcess] = []

    def run(self) -> dict[str, Any]:
        """Start the processes, wait for the end of all and report it.

        A process that is done waits until all are, because one that exits early closes its
        connections.

        The report has ``members`` (per process: status, said, foreign, output, stack, and answer,
        the bytes that came with its phase of this name), ``excess`` (the limit that was passed),
        ``finding``, ``trace`` (these two from the watch), ``left`` (names of processes that
        outlived their parents), ``unended`` (those that could not be killed) and ``seconds``.
        Raises EOFError or ConnectionError when the caller is gone or gave up; then, too, nothing is
        left running.
        """
        left: list[str] = []
        try:
            try:
                self._start()
                excess, finding = self._until_the_end()
                stuck = finding is not None and finding.kind == "no_progress"
                if stuck or excess in ("busy", "blocked", "slow"):
                    self._ask_where_they_are()
                if not excess and not finding:
                    left = process_tree.left_behind(self._limits.grace)
            finally:
                unended = process_tree.end_all(*(child.pid for child in self._children))
            self._take_in(0)
        finally:
            self._selector.close()
            for child in self._children:
                child.close()
        return {
            "members": [child.report() for child in self._children],
            "excess": excess,
            "finding": finding,
            "trace": self._watch.trace if self._watch else None,
            "left": left,
            "unended": unended,
            "seconds": time.monotonic() - self._began,
        }

    def _start(self) -> None:
        token = secrets.token_bytes(16)
        for number in range(self._count):
            child = ChildProcess(self._body, number, token=token, limits=self._limits)
            self._children.append(child)
            for pipe, descriptor in child.read.items():
                self._selector.register(descriptor, selectors.EVENT_READ, (number, pipe))

    def _until_the_end(self) -> tuple[Excess | None, Finding | None]:
        """Why the run could not continue; neither, if all processes ended normally."""
        monitor = ResourceMonitor(self._limits, self._began, own_memory(psutil.Process()))
        threads = SystemThreads([child.pid for child in self._children])
        look = self._began + 4 * LOOK  # most runs are over before the first
        taken = 0
        while not self._ended():
            if not self._closing and taken < MUCH and time.monotonic() - self._began > SHORT:
                time.sleep(PAUSE)
            taken = self._take_in(CLOSING if self._closing else GLANCE)
            if all(child.holding or child.status is not None for child in self._children):
                for child in self._children:
                    child.release()
                self._closing = True
            now = time.monotonic()
            if self._watch and (finding := self._watch.look(now, threads)):
                return None, finding
            if self._limits is not UNLIMITED and now > look:
                total = sum(child.total for child in self._children)
                loads = any(child.loads_compiler for child in self._children)
                if excess := monitor.judge(now, resource_use(), total, loads=loads):
                    return excess, None
                look = time.monotonic() + LOOK
        self._take_in(0)
        return None, self._watch.final() if self._watch else None

    def _ended(self) -> bool:
        for number, child in enumerate(self._children):
            if child.status is not None:
                continue
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                self._take_in(0)  # its last frames come before its end
                child.status = os.waitstatus_to_exitcode(status)
                if self._watch:
                    self._watch.ended(number, child.status)
        return all(child.status is not None for child in self._children)

    def _take_in(self, wait: float) -> int:
        """Read what the processes have sent; return how many bytes."""
        taken = 0
        for key, _ in self._selector.select(wait):
            if key.data is None:
                raise EOFError("the caller is gone")
            number, pipe = key.data
            part = os.read(key.fd, 1 << 20)
            taken += len(part)
            frames = self._children[number].add(pipe, part)
            if not part:
                self._selector.unregister(key.fd)
                self._closing = True
            elif self._watch and pipe != "stack":
                self._watch.note_progress()  # a frame that is not whole yet is progress, too
                for frame in frames:
                    self._watch.hear(number, frame)
            if part and pipe == "output" and self._tell:
                self._caller.send(("output", number, part))
        return taken

    def _ask_where_they_are(self) -> None:
        asked = [child for child in self._children if child.status is None]
        for child in asked:
            os.kill(child.pid, signal.SIGUSR1)  # it is there until its status is asked for
        began, before = time.monotonic(), -1
        while (waited := time.monotonic() - began) < BUSY_DUMP:
            silent = [child for child in asked if not child.stack]
            now = sum(len(child.stack) for child in asked)
            if now == before and not silent:
                return
            if waited > DUMP and not any(process_tree.runnable(child.pid) for child in silent):
                return
            before = now
            self._take_in(LOOK)


class ChildProcess:
    """One process of a run, as its supervisor knows it: frames, output, stack, end."""

    def __init__(self, body: Body, number: int, *, token: bytes, limits: Limits) -> None:
        self.said: list[dict[str, Any]] = []  # its frames, but for those of the watch
        self.answer = b""  # the bytes that came with the phase of this name
        self.status: int | None = None  # once it is gone; negative for a signal
        self.holding = False  # it waits to be let go
        self.loads_compiler = False  # this takes long, and is not what the answer does
        self.output, self.stack = bytearray(), bytearray()  # the first bytes of each
        self._kept_output = limits.kept_output
        self.total = 0  # bytes from all pipes
        self._reader = FrameReader(token, keep=limits.answer)
        pipes = {name: os.pipe() for name in ("frames", "output", "stack")}
        may_leave, self._release = os.pipe()  # it closes when the process may leave
        self.read = {name: ends[0] for name, ends in pipes.items()}
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):  # the user has too many large pipes
                fcntl.fcntl(pipes["frames"][1], fcntl.F_SETPIPE_SZ, ROOM)
        supervisor = os.getpid()
        self.pid = os.fork()
        theirs = {name: ends[1] for name, ends in pipes.items()} | {"may_leave": may_leave}
        if self.pid == 0:
            process_tree.die_with(supervisor)
            isolate_process(**theirs, limits=limits)
            run_child(body, number, FrameWriter(theirs["frames"], token).write, may_leave)
        for end in theirs.values():
            os.close(end)

    def release(self) -> None:
        if self._release >= 0:
            os.close(self._release)
            self._release = -1

    def close(self) -> None:
        self.release()
        for descriptor in self.read.values():
            os.close(descriptor)

    def add(self, pipe: str, part: bytes) -> list[dict[str, Any]]:
        """Take in data from a pipe; return the frames in it."""
        self.total += len(part)
        if pipe != "frames":
            kept: bytearray = getattr(self, pipe)
            kept += part[: self._kept_output - len(kept)]
            return []
        frames = self._reader.add(part)
        for header, blob in frames:
            if header["phase"] not in FOR_THE_WATCH:
                self.said.append(header)
            if header["phase"] == "answer":
                self.answer = blob
            self.holding = self.holding or header["phase"] == "holding"
            self.loads_compiler = self.loads_compiler or header["phase"] == "loads_compiler"
        return [header for header, _ in frames]

    def report(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "said": self.said,
            "foreign": self._reader.foreign(),
            "output": self.output.decode(errors="replace"),
            "stack": self.stack.decode(errors="replace"),
            "answer": self.answer,
        }


# --- in the process ------------------------------------------------------------------------------


def isolate_process(frames: int, output: int, stack: int, may_leave: int, limits: Limits) -> None:
    """Own session, own descriptors, nothing to read, and limits that the kernel enforces."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, output), (2, output)):
        os.dup2(source, target)
    keep = sorted({frames, stack, may_leave})
    for low, high in zip([2, *keep], [*keep, 65536], strict=True):
        os.closerange(low + 1, high)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable(stack, all_threads=True)
    faulthandler.register(signal.SIGUSR1, stack, all_threads=True)
    if sys.platform != "linux":  # there the kernel does it: process_tree.die_with
        threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    atexit._clear()  # what the server's own libraries registered takes 60 ms
    limit(resource.RLIMIT_CORE, 0)
    if limits.file_size is not None:
        limit(resource.RLIMIT_FSIZE, limits.file_size)


def end_with(parent: int) -> None:
    """End this process soon after its parent."""
    while os.getppid() == parent:
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)


def limit(kind: int, value: int) -> None:
    """Have the kernel limit this process to ``value``, or to its present limit."""
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def run_child(body: Body, number: int, write: Write, may_leave: int) -> NoReturn:
    """Run ``body(number, write)`` and end the process."""
    leave, own_pid, pid = os._exit, os.getpid, os.getpid()

    def reporting_exit(status: int) -> NoReturn:
        frame = sys._getframe(1)
        where = [frame.f_code.co_filename, frame.f_lineno]
        write({"phase": "left", "status": int(status), "where": where, "time": time.monotonic()})
        leave(status)

    os._exit = reporting_exit
    thread = threading.get_native_id()
    write({"phase": "started", "thread": thread, "time": time.monotonic()})
    try:
        body(number, write)
        write({"phase": "ending"})
        # As Python ends a program: wait for its threads, then run what was registered.
        threading._shutdown()  # type: ignore[attr-defined]
        multiprocessing.util._exit_function()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        write({"phase": "holding"})
        if own_pid() == pid:  # a forked child that went on to here has no one to wait for
            os.read(may_leave, 1)  # others may still need what this process has to give
        write({"phase": "ended"})
        leave(0)
    except BaseException:  # a fault of ours, or the body's code broke what we use
        write({"phase": "fault", "traceback": traceback.format_exc()[-SHOWN_FAULT:]})
    finally:
        leave(BROKEN)
