"""On what a comparison ran: said in the table, in the CSV and in the figure itself."""

from __future__ import annotations

import os
import platform
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

from multigpu.ranks.errors import counted
from multigpu.scaling.plan import Candidate


@dataclass(frozen=True)
class Machine:
    """The machine and the versions that matter for a time."""

    processor: str
    cores: int  # that this process may use
    gpus: tuple[str, ...]  # the names of the real ones
    system: str
    python: str
    torch: str

    @classmethod
    def here(cls) -> Machine:
        """This machine."""
        import torch

        count = torch.cuda.device_count()
        return cls(
            processor=processor_name(),
            cores=cores_here(),
            gpus=tuple(torch.cuda.get_device_name(index) for index in range(count)),
            system=f"{platform.system()} {platform.machine()}",
            python=platform.python_version(),
            torch=torch.__version__,
        )

    def where(self, candidate: Candidate) -> str:
        """On what a candidate runs on this machine, in the words of the figure."""
        if candidate.mode == "single":
            return self.named(1) if self.gpus else f"one process on the CPU ({self._cores})"
        if candidate.mode == "dp":
            return self._where_dp(candidate.gpus)
        return self._where_ranks(candidate.ranks)

    def _where_dp(self, gpus: int) -> str:
        if len(self.gpus) >= gpus:
            return self.named(gpus)
        carrier = self.named(1) if self.gpus else f"one CPU, {self._cores}"
        return f"{counted(gpus, 'virtual GPU')} ({carrier})"

    def _where_ranks(self, ranks: int) -> str:
        if len(self.gpus) >= ranks:
            return f"{self.named(ranks)} (nccl)"
        if self.gpus:
            return f"{ranks} gloo processes share {self.named(len(self.gpus))}"
        return f"{counted(ranks, 'gloo process')} on the CPU ({self._cores})"

    def named(self, gpus: int) -> str:
        """The first `gpus` GPUs by name: `2 × NVIDIA A100`."""
        counted = Counter(self.gpus[:gpus])
        return ", ".join(f"{count} × {name}" for name, count in counted.items())

    @property
    def _cores(self) -> str:
        return counted(self.cores, "core")

    def __str__(self) -> str:
        gpus = self.named(len(self.gpus)) if self.gpus else "no GPU"
        return (
            f"{self.processor}, {self._cores}, {gpus}; "
            f"{self.system}, Python {self.python}, torch {self.torch}"
        )


def processor_name() -> str:
    """The processor as its maker calls it, as far as the system says so."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), "") or platform.processor() or platform.machine()


def cores_here() -> int:
    """How many cores this process may use, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load_here(seconds: float = 0.5) -> float:
    """How many cores are at work on something, measured over the next `seconds`.

    The system's own load average would still count what this process itself did a minute ago.
    """
    share = float(psutil.cpu_percent(interval=seconds)) / 100
    return round(share * (psutil.cpu_count() or 1), 2)
