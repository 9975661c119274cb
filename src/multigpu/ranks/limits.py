"""How much processes may use before they are ended."""

from dataclasses import dataclass
from math import inf

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """Generous for right answers, which need about a tenth of a second and 50 MB.

    A hang is judged by what the worker does and not by the clock, so that a busy machine makes
    nobody fail: either it has used ``cpu`` seconds of processor time, or for ``idle`` seconds it
    used next to none although it was not waiting for a core.  ``wall`` is only the backstop.
    """

    cpu: float = 6.0
    idle: float = 3.0
    wall: float = 60.0
    host_memory: int = 2048 * MIB  # beyond what the warm server already holds
    file_size: int | None = 256 * MIB  # None: any
    processes: int = 64
    kept_output: int = 20_000  # bytes; the rest is counted and dropped
    answer: int = 512 * MIB
    farewell: float = 0.5  # for child processes to end by themselves after the worker

    @property
    def bounded(self) -> bool:
        """Whether anything is limited that has to be looked after."""
        return self.cpu < inf or self.idle < inf or self.wall < inf


# For code that nobody judges: it may take as long and as much as it likes.
UNLIMITED = Limits(
    cpu=inf,
    idle=inf,
    wall=inf,
    host_memory=2**63,
    file_size=None,
    processes=2**31,
    kept_output=2**24,
    answer=2**50,
)
