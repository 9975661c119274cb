"""One run at a time writes into a folder: a lock that no crash leaves behind.

The lock belongs to the process, not to the file: when the process ends, however it ends, the
kernel gives the lock back. So nothing has to be cleared away by hand after a crash, and what
another process has left half written may be removed by whoever holds the lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
import warnings
from datetime import datetime
from pathlib import Path

NAME = ".multigpu.lock"  # stays in the folder: removing it would let two processes lock two files
WAIT = 3.0  # seconds: a run that is restarted at once may meet its predecessor still ending
HELD = (errno.EACCES, errno.EAGAIN)
# (process, device, inode) of each lock that is held here: lockf lets a process take its own lock
# twice, and closing any of its descriptors of the file gives it back.
_held_here: set[tuple[int, int, int]] = set()


class FolderInUse(RuntimeError):
    """Another run is writing into the folder."""


class FolderLock:
    """Hold it with `with`: nobody else on any machine that sees the folder has it then.

    It is `fcntl.lockf`'s lock: forked DataLoader workers do not inherit it, and NFS knows it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._file: int | None = None

    def acquire(self) -> bool:
        """Take the lock. False where the file system has no locks; that is said once.

        Raises FolderInUse, with the process that has it, and OSError where nothing can be written.
        """
        if self.path.exists() and lock_of(self.path) in _held_here:
            raise FolderInUse("another Trainer in this process")
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        until = time.monotonic() + WAIT
        while True:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as problem:
                if problem.errno in HELD and time.monotonic() < until:
                    time.sleep(0.05)
                    continue
                owner = self.owner()
                self.release()
                if problem.errno in HELD:
                    raise FolderInUse(owner) from None
                warnings.warn(f"{self.path.parent}: no locks here ({problem}).", stacklevel=2)
                return False
            self._sign()
            _held_here.add(lock_of(self._file))
            return True

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._file is not None:
            _held_here.discard(lock_of(self._file))
            os.close(self._file)
        self._file = None

    def owner(self) -> str:
        """Who holds the lock, in words."""
        try:
            said = json.loads(self.path.read_text())
            return f"process {said['pid']} on {said['host']}, since {said['since']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"

    def _sign(self) -> None:
        """Write down who holds the lock, for the message that another one gets."""
        assert self._file is not None
        since = datetime.now().isoformat(sep=" ", timespec="seconds")
        said = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, json.dumps(said).encode(), 0)


def lock_of(file: Path | int) -> tuple[int, int, int]:
    """What tells this process's lock on a file from all others."""
    found = os.stat(file)
    return os.getpid(), found.st_dev, found.st_ino
