"""The judge's side of the warm server: start it early, ask it, end it."""

from typing import Any

from multigpu.ranks.frames import Closed, receive, send
from multigpu.ranks.server import Server


class ServerDied(Exception):
    """The server ended in the middle of a request; the text is the end of its error output."""


class WarmServer:
    """A server process, started at once and waited for only by the first request."""

    def __init__(self) -> None:
        self._server = Server("multigpu.checking.server")

    def ask(self, header: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Run one request.  Raises ServerDied; the next request then gets a new server."""
        self._server.asked = True
        try:
            send(self._server.connection, header, payload)
            return receive(self._server.connection)
        except Closed:
            self._server.stop()
            self._server.kill_family()  # nobody else is left to end what it had started
            text = self._server.last_words()
            self.close()
            self._server = Server("multigpu.checking.server")
            raise ServerDied(text) from None

    @property
    def mark(self) -> str:
        """What is in the environment of the server and of all that it starts."""
        return self._server.mark

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._server.process.pid

    def close(self) -> None:
        """End the server and whatever it runs."""
        self._server.close()

    def __enter__(self) -> "WarmServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
