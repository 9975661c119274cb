"""Watches one worker from outside: reads what it says, and ends it when it goes too far."""

import os
import selectors
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Any

import psutil

from multigpu.ranks import family
from multigpu.ranks.frames import split_frames
from multigpu.ranks.limits import Limits
from multigpu.ranks.pulse import Excess, Pulse

LOOK = 0.05  # seconds between two looks at the vital signs
CLOSING = 0.002  # seconds between two looks at a worker that has closed its pipe
DUMP = 0.5  # seconds for a hanging worker to write down where it stands


class JudgeGone(Exception):
    """The judge ended while a worker was running."""


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


def left_behind(farewell: float) -> list[str]:
    """The names of processes that workers started and that outlive them by ``farewell`` seconds."""
    deadline = time.monotonic() + farewell
    while True:
        left = family.survivors()
        if not left or time.monotonic() > deadline:
            return [process.name() for process in left]
        time.sleep(0.01)


class Supervision:
    """One worker, from its start to the moment when nothing of it is left."""

    def __init__(
        self, pid: int, pipes: dict[str, int], *, limits: Limits, judge: socket.socket
    ) -> None:
        self._pid, self._limits, self._judge = pid, limits, judge
        self._intakes = {name: Intake(limits.kept_output) for name in pipes}
        self._intakes["mouth"].keep = limits.answer
        self._selector = selectors.DefaultSelector()
        self._selector.register(judge, selectors.EVENT_READ, None)
        for name, descriptor in pipes.items():
            self._selector.register(descriptor, selectors.EVENT_READ, name)
        self._began = time.monotonic()
        self._status: int | None = None
        self._closing = False

    def watch(self, token: bytes) -> tuple[dict[str, Any], bytes]:
        """Wait for the end of the worker and report it.  Raises JudgeGone."""
        excess: Excess | None = None
        left: list[str] = []
        try:
            excess = self._until_the_end()
            if excess is None:
                left = left_behind(self._limits.farewell)
            elif excess in ("busy", "blocked", "slow"):
                self._ask_where_it_stands()
        finally:
            family.end_all(self._pid)
        self._take_in(0)
        self._selector.close()
        return self._report(token, excess, left)

    def _until_the_end(self) -> Excess | None:
        """None when the worker ended by itself, else the limit that it passed."""
        pulse = Pulse(self._limits, self._began, family.own_memory(psutil.Process()))
        look = self._began + 4 * LOOK  # most workers are done before the first
        while not self._ended():
            self._take_in(CLOSING if self._closing else LOOK)
            if time.monotonic() > look:
                heard = sum(intake.total for intake in self._intakes.values())
                if excess := pulse.judge(time.monotonic(), family.signs(), heard):
                    return excess
                look = time.monotonic() + LOOK
        return None

    def _ended(self) -> bool:
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            self._status = os.waitstatus_to_exitcode(status)
        return bool(pid)

    def _take_in(self, wait: float) -> None:
        """Read what the worker has written, or wait a moment for it."""
        for key, _ in self._selector.select(wait):
            if key.data is None:
                raise JudgeGone
            part = os.read(key.fd, 1 << 20)
            self._intakes[key.data].add(part)
            if not part:
                self._selector.unregister(key.fd)
                self._closing = True

    def _ask_where_it_stands(self) -> None:
        os.kill(self._pid, signal.SIGUSR1)
        deadline, stack, before = time.monotonic() + DUMP, self._intakes["stack"], -1
        while time.monotonic() < deadline and (not stack.total or stack.total > before):
            before = stack.total
            self._take_in(LOOK)

    def _report(
        self, token: bytes, excess: str | None, left: list[str]
    ) -> tuple[dict[str, Any], bytes]:
        said, foreign = split_frames(bytes(self._intakes["mouth"].data), token)
        answers = [blob for header, blob in said if header["phase"] == "answer"]
        return {
            "excess": excess,
            "status": self._status,
            "said": [header for header, _ in said],
            "foreign": foreign,
            "output": self._intakes["output"].text(),
            "output_bytes": self._intakes["output"].total,
            "stack": self._intakes["stack"].text(),
            "left": left,
            "seconds": time.monotonic() - self._began,
        }, answers[-1] if answers else b""
