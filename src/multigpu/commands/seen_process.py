"""A process of the course as `multigpu monitor` shows it."""

from __future__ import annotations

import time
from dataclasses import dataclass

RANKS_SERVER, CHECK_SERVER = "multigpu.ranks.forkserver", "multigpu.checking.worker"


@dataclass(frozen=True)
class CourseProcess:
    """One process at one moment. None stands for what is not known."""

    pid: int
    parent: int
    kind: str  # rank, notebook, command, script, torchrun, server, child
    what: str  # for people: "multigpu train", "ddp.ipynb"
    rank: int | None
    world_size: int | None
    started: float  # seconds since 1970
    cpu: float | None = None  # percent of one core since the last look; None: the first look
    memory: int | None = None  # bytes; what several share is divided among them
    command: str = ""

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return max(0.0, time.time() - self.started)
