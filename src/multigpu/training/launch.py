"""How this process was started: alone, or as one of several ranks, and by whom."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # torchrun sets all


@dataclass(frozen=True)
class Launch:
    """This process among the processes that train together."""

    rank: int = 0  # among all processes of all machines
    local_rank: int = 0  # among those of this machine
    world_size: int = 1  # processes in all
    local_world_size: int = 1  # processes on this machine
    started_by: str = "python"  # or "torchrun", or "a process group" that was there already

    @property
    def is_main(self) -> bool:
        """Rank 0 prints, shows the progress and writes files."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Started as a rank of a process group, though perhaps of one rank."""
        return self.started_by != "python"

    def require_ranks(self, mode: str) -> None:
        """Raise ValueError where `mode` needs ranks and this process is alone."""
        if not self.is_distributed:
            raise ValueError(
                f"mode={mode!r} needs one process for each GPU. Start them with "
                "`torchrun --nproc_per_node 2 ...`, or try it here with run_ranks(fn, 2)."
            )

    @classmethod
    def here(cls, environ: Mapping[str, str] = os.environ) -> Launch:
        """What this process's process group or environment says.

        Raises ValueError when some of torchrun's variables are set and others are not.
        """
        from torch import distributed as dist

        if dist.is_available() and dist.is_initialized():
            rank, world_size = dist.get_rank(), dist.get_world_size()
            return cls(
                rank=rank,
                local_rank=int(environ.get("LOCAL_RANK", rank)),
                world_size=world_size,
                local_world_size=int(environ.get("LOCAL_WORLD_SIZE", world_size)),
                started_by="a process group",
            )
        return from_torchrun(environ) if any(name in environ for name in NEEDED) else cls()


def from_torchrun(environ: Mapping[str, str]) -> Launch:
    """What torchrun's variables say.  Raises ValueError where they cannot be torchrun's."""
    given = [name for name in NEEDED if name in environ]
    way_out = f"to train in one process, `unset {' '.join(given)}`"
    if missing := [name for name in NEEDED if name not in environ]:
        raise ValueError(
            f"{', '.join(given)} set, but not {', '.join(missing)}: torchrun sets all of them. "
            f"Start with `torchrun --nproc_per_node N ...`; {way_out}."
        )
    rank, world_size = number(environ, "RANK"), number(environ, "WORLD_SIZE")
    local_rank = number(environ, "LOCAL_RANK")
    local_world_size = (
        number(environ, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in environ else world_size
    )
    if not (0 <= rank < world_size and 0 <= local_rank < local_world_size <= world_size):
        raise ValueError(
            f"RANK={rank} of WORLD_SIZE={world_size} and LOCAL_RANK={local_rank} of "
            f"LOCAL_WORLD_SIZE={local_world_size} cannot be: ranks count from 0. Let torchrun set "
            f"them; {way_out}."
        )
    return Launch(rank, local_rank, world_size, local_world_size, "torchrun")


def number(environ: Mapping[str, str], name: str) -> int:
    """The whole number in an environment variable.  Raises ValueError."""
    try:
        return int(environ[name])
    except ValueError:
        raise ValueError(f"{name}={environ[name]!r} is not a whole number") from None
