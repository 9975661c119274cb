"""The caller's side of a warm server: started at the first run, ended with the caller.

A run has a folder, by which it is found again when its owners were killed. That of a run inside a
rank is in the folder of the outer run: whoever removes that one removes both.
"""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

from multigpu.ranks.process_tree import MARK, end_marked
from multigpu.ranks.warming import BY_NAME, costly_imports

INSIDE = "MULTIGPU_RUN_FOLDER"  # where ranks, and the servers that they start, make theirs


def make_run_folder(mark: str) -> str:
    """A new folder for a run of the server with this mark."""
    return tempfile.mkdtemp(prefix=_prefix(mark), dir=_parent())


def remove_run_folders(mark: str) -> None:
    """Remove what runs of the server with this mark have left."""
    for folder in Path(_parent()).glob(f"{_prefix(mark)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _parent() -> str:
    outer = os.environ.get(INSIDE, "")
    return outer if os.path.isdir(outer) else tempfile.gettempdir()


def _prefix(mark: str) -> str:
    return f"multigpu-ranks-{mark.rpartition('.')[2]}-"


CLEARING = 10.0  # seconds for a server to clear up after a supervisor that was killed


class Server:
    """A process of ours that runs ``python -m module FD`` and lives as long as we do.

    ``mark`` is in its environment and in that of all that it starts.
    """

    def __init__(self, module: str) -> None:
        self.connection, theirs = socket.socketpair()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as we do)
        self.mark = f"{os.environ.get(MARK, '')}.{secrets.token_hex(8)}".lstrip(".")
        self.runs = 0  # that are going on
        self.asked = False  # for anything, so far
        environment = os.environ | {
            MARK: self.mark,
            INSIDE: _parent(),  # it makes its folders where we look for them
            "OMP_NUM_THREADS": "1",
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # counting GPUs must not start CUDA
            "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",  # macOS: forking is what it does
        }
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C reaches us alone, and we end the rest
                env=environment,
            )

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def error_output(self) -> str:
        """The end of its error output."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-2000:]

    def kill_process_tree(self) -> None:
        """Kill it and everything that it has started; needed only where it died too early."""
        end_marked(self.mark)
        remove_run_folders(self.mark)

    def clear_up(self, folder: str) -> None:
        """Wait until it has ended what a killed supervisor left, or died; remove its folder."""
        deadline = time.monotonic() + CLEARING
        while os.path.exists(folder) and self.alive and time.monotonic() < deadline:
            time.sleep(0.01)
        shutil.rmtree(folder, ignore_errors=True)

    def stop(self) -> None:
        """End it, and whatever it runs."""
        self.connection.close()
        if not self.asked:  # it imports torch still, and has started nothing
            self.process.kill()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        """End it; its error output is gone then, too."""
        self.stop()
        self._errors.close()


class ForkServer:
    """The one forkserver of this process."""

    _lock = threading.Lock()
    _server: Server | None = None
    _owner = 0
    _costly = 0  # what ranks have imported so far, by the bits of warming.COSTLY

    @classmethod
    def learn(cls, costly: int) -> None:
        """Ranks have imported this: the server will do so before it forks the next ones."""
        cls._costly |= costly & 0xFF  # it is told so in one byte

    @classmethod
    def connect(cls, costly: int = 0) -> tuple[Server, socket.socket]:
        """The server and a way to a new supervisor, which waits for its job there.

        ``costly`` are imports, by the bits of warming.COSTLY, that the job will need.

        Call ``leave`` when the run is over.  Raises RuntimeError if no server can be started.
        """
        ours, theirs = socket.socketpair()
        wanted = bytes([costly | cls._costly | costly_imports(BY_NAME)])
        with cls._lock, theirs:
            for _ in range(2):  # the old one may have been killed
                server = cls._running()
                server.asked = True
                with contextlib.suppress(ConnectionError):
                    socket.send_fds(server.connection, [wanted], [theirs.fileno()])
                    server.runs += 1
                    return server, ours
            words = server.error_output()
        ours.close()
        raise RuntimeError(f"the process that starts ranks has ended: {words}")

    @classmethod
    def _running(cls) -> Server:
        if cls._owner != os.getpid():  # the server belongs to the process that we were forked from
            if cls._server is not None:
                cls._server.connection.close()
            cls._server, cls._owner = None, os.getpid()
        if cls._server is not None and not cls._server.alive:
            cls._end_if_dead(cls._server)
            cls._server = None
        if cls._server is None:
            cls._server = Server("multigpu.ranks.forkserver")
        return cls._server

    @classmethod
    def stop(cls) -> None:
        """End the server.  The next run starts another one."""
        with cls._lock:
            if cls._server is not None and cls._owner == os.getpid():
                cls._server.close()
            cls._server = None

    @classmethod
    def leave(cls, server: Server) -> None:
        """One run of this server is over."""
        with cls._lock:
            server.runs -= 1
            cls._end_if_dead(server)

    @classmethod
    def _end_if_dead(cls, server: Server) -> None:
        """End what a dead server has left, once the runs that go on without it are over."""
        if not server.alive and not server.runs:
            server.kill_process_tree()
            server.close()
