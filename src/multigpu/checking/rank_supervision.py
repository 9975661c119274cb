"""Watches the workers of one run on ranks from outside, and ends them when one goes too far."""

import os
import selectors
import socket
import time
from typing import Any

import psutil

from multigpu.checking.supervision import CLOSING, LOOK, Intake, JudgeGone
from multigpu.ranks import family
from multigpu.ranks.frames import split_frames
from multigpu.ranks.limits import Limits
from multigpu.ranks.pulse import Pulse

GRACE = 0.3  # seconds for the others to say what they have to say


class RankSupervision:
    """All ranks of a run, from their start to the moment when nothing of them is left."""

    def __init__(
        self,
        members: list[tuple[int, dict[str, int], int]],
        *,
        limits: Limits,
        judge: socket.socket,
    ) -> None:
        self._pids = [pid for pid, _, _ in members]
        self._release = [release for _, _, release in members]
        self._limits = limits
        self._intakes = [
            {name: Intake(limits.answer if name == "mouth" else limits.kept_output) for name in r}
            for _, r, _ in members
        ]
        self._selector = selectors.DefaultSelector()
        self._selector.register(judge, selectors.EVENT_READ, None)
        for rank, (_, readers, _) in enumerate(members):
            for name, descriptor in readers.items():
                self._selector.register(descriptor, selectors.EVENT_READ, (rank, name))
        self._statuses: dict[int, int] = {}
        self._began = time.monotonic()

    def watch(self, token: bytes) -> tuple[dict[str, Any], bytes]:
        """Wait for the end of all ranks and report it.  Raises JudgeGone."""
        try:
            excess = self._until_the_end(token)
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
                    "left": [],
                    "seconds": time.monotonic() - self._began,
                    "answer": len(blobs[-1]),
                }
            )
        return {
            "members": members,
            "finding": None,
            "seconds": time.monotonic() - self._began,
        }, b"".join(blobs)

    def _until_the_end(self, token: bytes) -> str | None:
        pulse = Pulse(self._limits, self._began, family.own_memory(psutil.Process()))
        look, stop = self._began, float("inf")
        while len(self._statuses) < len(self._pids) and time.monotonic() < stop:
            self._take_in(CLOSING)
            self._collect()
            phases = self._phases(token)
            if all("ending" in said for said in phases):
                while self._release:
                    os.write(self._release.pop(), b".")
            if stop == float("inf") and any("raised" in said for said in phases):
                stop = time.monotonic() + GRACE
            if time.monotonic() > look:
                heard = sum(i.total for intakes in self._intakes for i in intakes.values())
                if excess := pulse.judge(time.monotonic(), family.signs(), heard):
                    return excess
                look = time.monotonic() + LOOK
        return None

    def _phases(self, token: bytes) -> list[set[str]]:
        return [
            {header["phase"] for header, _ in split_frames(bytes(i["mouth"].data), token)[0]}
            for i in self._intakes
        ]

    def _collect(self) -> None:
        for rank, pid in enumerate(self._pids):
            if rank not in self._statuses:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self._statuses[rank] = os.waitstatus_to_exitcode(status)

    def _take_in(self, wait: float) -> None:
        for key, _ in self._selector.select(wait):
            if key.data is None:
                raise JudgeGone
            rank, name = key.data
            part = os.read(key.fd, 1 << 20)
            self._intakes[rank][name].add(part)
            if not part:
                self._selector.unregister(key.fd)
