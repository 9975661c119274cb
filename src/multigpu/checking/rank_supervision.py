"""Watches the workers of one run on ranks from outside, and ends them when one goes too far."""

import contextlib
import os
import selectors
import signal
import socket
import time
from dataclasses import dataclass
from typing import IO, Any

import psutil

from multigpu.checking.supervision import CLOSING, DUMP, LOOK, Intake, JudgeGone, left_behind
from multigpu.ranks import family
from multigpu.ranks.findings import Finding
from multigpu.ranks.frames import split_frames
from multigpu.ranks.limits import Limits
from multigpu.ranks.pulse import Pulse
from multigpu.ranks.threads import SystemThreads
from multigpu.ranks.watch import Watch


@dataclass
class Member:
    """One rank's process, our ends of its pipes, and the pipe that it waits for to be closed."""

    pid: int
    readers: dict[str, int]
    release: IO[bytes]


class RankSupervision:
    """All ranks of a run, from their start to the moment when nothing of them is left."""

    def __init__(
        self,
        members: list[Member],
        *,
        limits: Limits,
        judge: socket.socket,
    ) -> None:
        self._members = members
        self._pids = [member.pid for member in members]
        self._limits = limits
        self._intakes = [
            {
                name: Intake(limits.answer if name == "mouth" else limits.kept_output)
                for name in member.readers
            }
            for member in members
        ]
        self._selector = selectors.DefaultSelector()
        self._selector.register(judge, selectors.EVENT_READ, None)
        for rank, member in enumerate(members):
            for name, descriptor in member.readers.items():
                self._selector.register(descriptor, selectors.EVENT_READ, (rank, name))
        self._statuses: dict[int, int] = {}
        self._heard = [0] * len(members)
        self._watch = Watch(len(members), timeout=None)
        self._began = time.monotonic()

    def watch(self, token: bytes) -> tuple[dict[str, Any], bytes]:
        """Wait for the end of all ranks and report it.  Raises JudgeGone."""
        finding: Finding | None = None
        left: list[str] = []
        try:
            excess, finding = self._until_the_end(token)
            if excess in ("busy", "blocked", "slow"):
                self._ask_where_they_stand()
            if excess is None and finding is None:
                left = left_behind(self._limits.farewell)
        finally:
            for pid in self._pids:
                family.end_all(pid)
        self._take_in(0)
        self._selector.close()
        members, blobs = [], []
        for rank, intakes in enumerate(self._intakes):
            said, foreign = split_frames(bytes(intakes["mouth"].data), token)
            answers = [blob for header, blob in said if header["phase"] == "answer"]
            blobs.append(answers[-1] if answers else b"")
            members.append(
                {
                    "excess": excess,
                    "status": self._statuses.get(rank),
                    "said": [header for header, _ in said],
                    "foreign": foreign,
                    "output": intakes["output"].text(),
                    "output_bytes": intakes["output"].total,
                    "stack": intakes["stack"].text(),
                    "left": left,
                    "seconds": time.monotonic() - self._began,
                    "answer": len(blobs[-1]),
                }
            )
        return {
            "members": members,
            "finding": finding.to_dict() if finding else None,
            "seconds": time.monotonic() - self._began,
        }, b"".join(blobs)

    def _until_the_end(self, token: bytes) -> tuple[str | None, Finding | None]:
        pulse = Pulse(self._limits, self._began, family.own_memory(psutil.Process()))
        look, threads = self._began, SystemThreads(self._pids)
        while len(self._statuses) < len(self._pids):
            self._take_in(CLOSING)
            phases = self._hear(token)
            self._collect()
            if all("ending" in said for said in phases):
                for member in self._members:
                    member.release.close()
            if finding := self._watch.look(time.monotonic(), threads):
                return None, finding
            if time.monotonic() > look:
                heard = sum(i.total for intakes in self._intakes for i in intakes.values())
                if excess := pulse.judge(time.monotonic(), family.signs(), heard):
                    return excess, None
                look = time.monotonic() + LOOK
        self._take_in(0)
        self._hear(token)
        return None, self._watch.final()

    def _ask_where_they_stand(self) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        deadline, before = time.monotonic() + DUMP, -1
        stacks = [intakes["stack"] for intakes in self._intakes]
        while time.monotonic() < deadline and sum(s.total for s in stacks) != before:
            before = sum(s.total for s in stacks)
            self._take_in(LOOK)

    def _hear(self, token: bytes) -> list[set[str]]:
        phases = []
        for rank, intakes in enumerate(self._intakes):
            frames, _ = split_frames(bytes(intakes["mouth"].data), token)
            for header, _ in frames[self._heard[rank] :]:
                self._watch.hear(rank, header)
            self._heard[rank] = len(frames)
            phases.append({header["phase"] for header, _ in frames})
        return phases

    def _collect(self) -> None:
        for rank, pid in enumerate(self._pids):
            if rank not in self._statuses:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self._statuses[rank] = os.waitstatus_to_exitcode(status)
                    self._watch.ended(rank, self._statuses[rank])

    def _take_in(self, wait: float) -> None:
        for key, _ in self._selector.select(wait):
            if key.data is None:
                raise JudgeGone
            rank, name = key.data
            part = os.read(key.fd, 1 << 20)
            self._intakes[rank][name].add(part)
            if not part:
                self._selector.unregister(key.fd)
