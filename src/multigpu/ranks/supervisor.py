"""Starts the processes of one run, watches them from outside, and ends whatever is left of them.

    report, answers = supervise(4, body, limits=UNLIMITED, caller=connection, watch=Watch(4, …))

The process that calls this has one thread and has adopted orphans (``adopt_orphans``), so that
nothing that its processes start can get away from it.
"""

import contextlib
import os
import secrets
import selectors
import signal
import socket
import time
from collections.abc import Callable
from math import inf
from typing import Any

import psutil

from multigpu.ranks import process_tree
from multigpu.ranks.child_process import READ, Body, ChildProcess, live, open_pipes
from multigpu.ranks.errors import Finding
from multigpu.ranks.limits import Excess, Limits, ResourceMonitor, own_memory, resource_use
from multigpu.ranks.proof import Watch

GLANCE = 0.02  # seconds between two looks at what the ranks have said
LOOK = 0.05  # seconds between two looks at the resources in use
CLOSING = 0.002  # seconds between two looks at processes that have closed a pipe
DUMP = 2.0  # seconds for processes that are stuck to write down where they are
BUSY_DUMP = 20.0  # the same for one that waits for a core of a busy machine

Tell = Callable[[int, bytes], None]


class CallerGone(Exception):
    """The caller ended, or gave up, while processes were running for it."""


def supervise(
    count: int,
    body: Body,
    *,
    limits: Limits,
    caller: socket.socket,
    watch: Watch | None = None,
    tell: Tell | None = None,
) -> tuple[dict[str, Any], list[bytes]]:
    """Run ``body(number, write)`` in ``count`` processes; report how each ended, and their answers.

    ``watch`` hears all frames and may find that the run cannot go on.  ``tell(number, part)``
    gets the output as it comes.  A process that is done waits until all are: one that leaves
    early takes its connections with it.

    The report has ``members`` (per process: status, said, foreign, output, output_bytes, stack,
    answer: the length of the bytes that came with its phase "answer"), ``excess`` (the limit
    that was passed), ``finding``, ``left`` (names of processes that outlived their parents),
    ``unended`` (those that could not be killed) and ``seconds``.  Raises CallerGone; nothing is
    left running then, either.
    """
    token, prctl, supervisor = secrets.token_bytes(16), process_tree.bind_prctl(), os.getpid()
    children: list[ChildProcess] = []
    try:
        for number in range(count):
            ours, theirs = open_pipes()
            pid = os.fork()
            if pid == 0:
                live(
                    body,
                    number,
                    theirs,
                    token=token,
                    limits=limits,
                    prctl=prctl,
                    supervisor=supervisor,
                )
            children.append(ChildProcess(pid, ours, token=token, limits=limits))
            theirs.close()
        report = Supervisor(children, limits, caller, watch, tell).run()
        return report, [child.answer for child in children]
    except BaseException:
        process_tree.end_all(*(child.pid for child in children))
        raise
    finally:
        for child in children:
            child.ends.close()


class Supervisor:
    """The processes of one run, from their start to the moment when nothing of them is left."""

    def __init__(
        self,
        children: list[ChildProcess],
        limits: Limits,
        caller: socket.socket,
        watch: Watch | None,
        tell: Tell | None,
    ) -> None:
        self._children, self._limits, self._watch, self._tell = children, limits, watch, tell
        self._selector = selectors.DefaultSelector()
        self._selector.register(caller, selectors.EVENT_READ, None)
        for number, child in enumerate(children):
            for pipe in READ:
                descriptor = getattr(child.ends, pipe)
                self._selector.register(descriptor, selectors.EVENT_READ, (number, pipe))
        self._threads = process_tree.SystemThreads([child.pid for child in children])
        self._began = time.monotonic()
        self._closing = False

    def run(self) -> dict[str, Any]:
        """Wait for the end of all processes and report it.  Raises CallerGone."""
        left: list[str] = []
        with self._selector:
            excess, finding = self._until_the_end()
            if excess in ("busy", "blocked", "slow") or (finding and finding.kind == "no_progress"):
                self._ask_where_they_are()
            if not excess and not finding:
                left = process_tree.left_behind(self._limits.farewell)
            unended = process_tree.end_all(*(child.pid for child in self._children))
            self._take_in(0)
        return {
            "members": [child.report() for child in self._children],
            "excess": excess,
            "finding": finding.to_dict() if finding else None,
            "left": left,
            "unended": unended,
            "seconds": time.monotonic() - self._began,
        }

    def _until_the_end(self) -> tuple[Excess | None, Finding | None]:
        """What made it impossible to go on; neither, if all ended by themselves and well."""
        monitor = ResourceMonitor(self._limits, self._began, own_memory(psutil.Process()))
        bounded = min(self._limits.cpu, self._limits.idle, self._limits.wall) < inf
        look = self._began + 4 * LOOK  # most runs are over before the first
        while not self._ended():
            self._take_in(CLOSING if self._closing else GLANCE)
            if all(child.holding or child.status is not None for child in self._children):
                for child in self._children:
                    child.ends.close("release")
                self._closing = True
            now = time.monotonic()
            if self._watch and (finding := self._watch.look(now, self._threads)):
                return None, finding
            if bounded and now > look:
                total = sum(child.total for child in self._children)
                if excess := monitor.judge(now, resource_use(), total):
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
                self._take_in(0)  # its last words come before its end
                child.status = os.waitstatus_to_exitcode(status)
                if self._watch:
                    self._watch.ended(number, child.status)
        return all(child.status is not None for child in self._children)

    def _take_in(self, wait: float) -> None:
        """Read what the processes have written, or wait a moment for it."""
        for key, _ in self._selector.select(wait):
            if key.data is None:
                raise CallerGone
            number, pipe = key.data
            part = os.read(key.fd, 1 << 20)
            frames = self._children[number].add(pipe, part)
            if not part:
                self._selector.unregister(key.fd)
                self._closing = True
            elif self._watch and pipe != "stack":
                self._watch.stir()  # a frame that is not whole yet is progress, too
                for frame in frames:
                    self._watch.hear(number, frame)
            if part and pipe == "output" and self._tell:
                self._tell(number, part)

    def _ask_where_they_are(self) -> None:
        asked = []
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                if child.status is None:
                    os.kill(child.pid, signal.SIGUSR1)
                    asked.append(child)
        began, before = time.monotonic(), -1
        while self._may_answer(asked, time.monotonic() - began):
            now = sum(child.stack.total for child in asked)
            if now == before and all(child.stack.total for child in asked):
                return
            before = now
            self._take_in(LOOK)

    def _may_answer(self, asked: list[ChildProcess], seconds: float) -> bool:
        """Whether more is to be expected of those who were asked ``seconds`` ago."""
        silent = [child for child in asked if not child.stack.total]
        patient = seconds < BUSY_DUMP and any(
            process_tree.runnable(psutil.Process(child.pid)) for child in silent
        )
        return seconds < DUMP or patient
