"""The pipes between a leader and each of the processes that it started."""

import contextlib
import fcntl
import os
from dataclasses import dataclass

ROOM = 2**20  # bytes that fit into a mouth: a large result then takes fewer turns
READ = ("mouth", "output", "stack")  # what the leader reads; the rest it holds open


@dataclass(frozen=True)
class Channels:
    """One process's ends, as file descriptors.  It closes all others."""

    mouth: int  # frames to the leader
    output: int  # what its code prints
    stack: int  # where its code stands, when asked or when it dies
    lifeline: int  # closes when the leader is gone
    release: int  # closes when it may leave

    def close(self) -> None:
        """Close these ends: the leader does so once the process has them."""
        for descriptor in vars(self).values():
            os.close(descriptor)


@dataclass
class Ends:
    """The leader's ends."""

    mouth: int
    output: int
    stack: int
    lifeline: int
    release: int

    def let_go(self) -> None:
        """Let the process leave."""
        if self.release >= 0:
            os.close(self.release)
            self.release = -1

    def close(self) -> None:
        """Close all of them."""
        self.let_go()
        for name in (*READ, "lifeline"):
            os.close(getattr(self, name))


def open_channels() -> tuple[Ends, Channels]:
    """New pipes for one process."""
    ours, theirs = {}, {}
    for name in ("mouth", "output", "stack", "lifeline", "release"):
        read, write = os.pipe()
        ours[name], theirs[name] = (read, write) if name in READ else (write, read)
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # the user has too many large pipes
            fcntl.fcntl(theirs["mouth"], fcntl.F_SETPIPE_SZ, ROOM)
    return Ends(**ours), Channels(**theirs)
