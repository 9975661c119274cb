"""Starts the processes of one run, watches them from outside, and ends whatever is left of them.

    report, answers = lead(4, body, limits=UNLIMITED, caller=connection, watch=Watch(4, timeout=60))

The process that calls this has one thread and has adopted orphans (``family.adopt_orphans``), so
that nothing that its processes start can get away from it.
"""

import contextlib
import os
import secrets
import selectors
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import psutil

from multigpu.ranks import process_tree
from multigpu.ranks.child_process import READ, Body, Heard, live, open_channels
from multigpu.ranks.errors import Finding
from multigpu.ranks.limits import Excess, Limits, Pulse
from multigpu.ranks.process_tree import SystemThreads
from multigpu.ranks.proof import Watch

GLANCE = 0.02  # seconds between two looks at what the ranks have said
LOOK = 0.05  # seconds between two looks at the vital signs
CLOSING = 0.002  # seconds between two looks at processes that have closed a pipe
DUMP = 2.0  # seconds for processes that are stuck to write down where they stand
BUSY_DUMP = 20.0  # the same for one that waits for a core of a busy machine

Tell = Callable[[int, bytes], None]


class CallerGone(Exception):
    """The caller ended, or gave up, while processes were running for it."""


def lead(
    count: int,
    body: Body,
    *,
    limits: Limits,
    caller: socket.socket,
    watch: Watch | None = None,
    tell: Tell | None = None,
) -> tuple[dict[str, Any], list[bytes]]:
    """Run ``body(number, say)`` in ``count`` processes; report how each ended, and their answers.

    ``watch`` hears all frames and may find that the run cannot go on.  ``tell(number, part)``
    gets the output as it comes.  A process that is done waits until all are: one that leaves
    early takes its connections with it.

    The report has ``members`` (per process: status, said, foreign, output, output_bytes, stack,
    answer: the length of the bytes that came with its phase "answer"), ``excess`` (the limit
    that was passed), ``finding``, ``left`` (names of processes that outlived their parents) and
    ``seconds``.  Raises CallerGone; nothing is left running then, either.
    """
    token, prctl, leader = secrets.token_bytes(16), process_tree.bind_prctl(), os.getpid()
    heard: list[Heard] = []
    try:
        for number in range(count):
            ends, channels = open_channels()
            pid = os.fork()
            if pid == 0:
                live(body, number, channels, token=token, limits=limits, prctl=prctl, leader=leader)
            heard.append(Heard(pid, ends, token=token, limits=limits))
            channels.close()
        with contextlib.closing(Leader(heard, limits, caller, watch, tell)) as watching:
            report = watching.lead()
        return report, [each.answer for each in heard]
    except BaseException:
        process_tree.end_all(*(each.pid for each in heard))
        raise
    finally:
        for each in heard:
            each.ends.close()


class Leader:
    """The processes of one run, from their start to the moment when nothing of them is left."""

    def __init__(
        self,
        heard: list[Heard],
        limits: Limits,
        caller: socket.socket,
        watch: Watch | None,
        tell: Tell | None,
    ) -> None:
        self._heard, self._limits, self._watch, self._tell = heard, limits, watch, tell
        self._selector = selectors.DefaultSelector()
        self._selector.register(caller, selectors.EVENT_READ, None)
        for number, each in enumerate(heard):
            for pipe in READ:
                descriptor = getattr(each.ends, pipe)
                self._selector.register(descriptor, selectors.EVENT_READ, (number, pipe))
        self._threads = SystemThreads([each.pid for each in heard])
        self._began = time.monotonic()
        self._closing = False

    def lead(self) -> dict[str, Any]:
        """Wait for the end of all processes and report it.  Raises CallerGone."""
        left: list[str] = []
        excess, finding = self._until_the_end()
        if excess in ("busy", "blocked", "slow") or (finding and finding.kind == "no_progress"):
            self._ask_where_they_stand()
        if not excess and not finding:
            left = process_tree.left_behind(self._limits.farewell)
        process_tree.end_all(*(each.pid for each in self._heard))
        self._take_in(0)
        return {
            "members": [each.report() for each in self._heard],
            "excess": excess,
            "finding": finding.to_dict() if finding else None,
            "left": left,
            "seconds": time.monotonic() - self._began,
        }

    def close(self) -> None:
        """Listen no more."""
        self._selector.close()

    def _until_the_end(self) -> tuple[Excess | None, Finding | None]:
        """What made it impossible to go on; neither, if all ended by themselves and well."""
        pulse = Pulse(self._limits, self._began, process_tree.own_memory(psutil.Process()))
        look = self._began + 4 * LOOK  # most runs are over before the first
        while not self._ended():
            self._take_in(CLOSING if self._closing else GLANCE)
            if all(each.holding or each.status is not None for each in self._heard):
                self._let_go()
            now = time.monotonic()
            if self._watch and (finding := self._watch.look(now, self._threads)):
                return None, finding
            if now > look and self._limits.bounded:
                total = sum(each.total for each in self._heard)
                if excess := pulse.judge(now, process_tree.signs(), total):
                    return excess, None
                look = time.monotonic() + LOOK
        self._take_in(0)
        return None, self._watch.final() if self._watch else None

    def _ended(self) -> bool:
        for number, each in enumerate(self._heard):
            if each.status is not None:
                continue
            pid, status = os.waitpid(each.pid, os.WNOHANG)
            if pid:
                self._take_in(0)  # its last words come before its end
                each.status = os.waitstatus_to_exitcode(status)
                if self._watch:
                    self._watch.ended(number, each.status)
        return all(each.status is not None for each in self._heard)

    def _let_go(self) -> None:
        for each in self._heard:
            each.ends.let_go()
        self._closing = True

    def _take_in(self, wait: float) -> None:
        """Read what the processes have written, or wait a moment for it."""
        for key, _ in self._selector.select(wait):
            if key.data is None:
                raise CallerGone
            number, pipe = key.data
            part = os.read(key.fd, 1 << 20)
            frames = self._heard[number].add(pipe, part)
            if self._watch:
                for frame in frames:
                    self._watch.hear(number, frame)
            if not part:
                self._selector.unregister(key.fd)
                self._closing = True
            elif pipe == "output":
                self._pass_on(number, part)

    def _pass_on(self, number: int, output: bytes) -> None:
        if self._watch:
            self._watch.stir()
        if self._tell:
            self._tell(number, output)

    def _ask_where_they_stand(self) -> None:
        asked = []
        for each in self._heard:
            with contextlib.suppress(ProcessLookupError):
                if each.status is None:
                    os.kill(each.pid, signal.SIGUSR1)
                    asked.append(each)
        began, before = time.monotonic(), -1
        while self._may_answer(asked, time.monotonic() - began):
            now = sum(each.stack.total for each in asked)
            if now == before and all(each.stack.total for each in asked):
                return
            before = now
            self._take_in(LOOK)

    def _may_answer(self, asked: list[Heard], seconds: float) -> bool:
        """Whether more is to be expected of those who were asked ``seconds`` ago."""
        silent = [each for each in asked if not each.stack.total]
        patient = seconds < BUSY_DUMP and any(
            process_tree.runnable(psutil.Process(each.pid)) for each in silent
        )
        return seconds < DUMP or patient
