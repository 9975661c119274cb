"""The judge's side of the warm server: start it early, ask it, end it."""

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from typing import Any

import psutil

from multigpu.ranks.family import MARK, marked
from multigpu.ranks.frames import Closed, receive, send


class ServerDied(Exception):
    """The server ended in the middle of a request; the text is the end of its error output."""


class WarmServer:
    """A server process, started at once and waited for only by the first request.

    ``mark`` is in the environment of the server and of all that it starts.
    """

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._connection, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the server)
        self.mark = secrets.token_hex(8)
        environment = os.environ | {
            MARK: self.mark,
            "OMP_NUM_THREADS": "1",
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # counting GPUs must not start CUDA
            "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",  # macOS: forking is what the server does
        }
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "multigpu.checking.server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C reaches the judge alone, which then ends the rest
                env=environment,
            )

    def ask(self, header: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Run one request.  Raises ServerDied; the next request then gets a new server."""
        try:
            send(self._connection, header, payload)
            return receive(self._connection)
        except Closed:
            self._stop()
            for process in marked(self.mark):  # nobody else is left to end what it had started
                with contextlib.suppress(psutil.Error):
                    process.kill()
            with self._errors:
                self._errors.seek(0)
                text = self._errors.read().decode(errors="replace")[-2000:]
            self._start()
            raise ServerDied(text) from None

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    def close(self) -> None:
        """End the server and whatever it runs."""
        self._stop()
        self._errors.close()

    def _stop(self) -> None:
        self._connection.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> "WarmServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
