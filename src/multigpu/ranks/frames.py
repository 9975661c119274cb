"""Frames on sockets and pipes: a JSON header and some bytes, each with its length."""

import os
import socket
import struct
import threading
from collections.abc import Callable
from json import dumps, loads  # bound here: a learner's patch of json changes nothing
from typing import Any

LENGTHS = struct.Struct(">QQ")
Write = Callable[..., None]  # takes a header, and some bytes


class Closed(Exception):
    """The other side is gone."""


def pack(header: dict[str, Any], blob: bytes = b"") -> bytes:
    """One frame."""
    text = dumps(header).encode()
    return LENGTHS.pack(len(text), len(blob)) + text + blob


def send(connection: socket.socket, header: dict[str, Any], blob: bytes = b"") -> None:
    """Send one frame.  Raises Closed."""
    try:
        connection.sendall(pack(header, blob))
    except OSError as error:
        if from_a_handler(error):
            raise
        raise Closed(str(error)) from error


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Wait for one frame.  Raises Closed."""
    lengths = LENGTHS.unpack(_exactly(connection, LENGTHS.size))
    text, blob = (_exactly(connection, length) for length in lengths)
    return loads(text), blob


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        try:
            part = connection.recv(min(length - len(data), 1 << 20))
        except OSError as error:
            if from_a_handler(error):
                raise
            raise Closed(str(error)) from error
        if not part:
            raise Closed("the other side is gone")
        data += part
    return bytes(data)


def from_a_handler(error: OSError) -> bool:
    """Whether a signal handler raised this, and not the system call of the function that caught it.

    Handlers run inside such a call, and what they raise (a TimeoutError, say) comes out of it.  It
    has a frame more: the handler's.
    """
    return error.__traceback__ is not None and error.__traceback__.tb_next is not None


class FrameWriter:
    """A worker's end of the pipe to the server.

    Every frame begins with ``token``, which the learner's code does not know: whatever else is
    written into the pipe is recognised as foreign.
    """

    def __init__(self, descriptor: int, token: bytes) -> None:
        self._descriptor, self._token = descriptor, token
        self._write, self._getpid, self._pid = os.write, os.getpid, os.getpid()
        self._turn = threading.Lock()  # several threads may write

    def write(self, header: dict[str, Any], blob: bytes = b"") -> None:
        """Write one frame, unless this is a forked child of the worker."""
        if self._getpid() != self._pid:
            return
        data = memoryview(self._token + pack(header, blob))
        with self._turn:
            while data:
                data = data[self._write(self._descriptor, data) :]


class FrameReader:
    """Takes the frames of a `FrameWriter` out of the parts of a pipe, as they come.

    Beyond ``keep`` bytes nothing is taken in any more.  ``foreign`` counts the bytes of something
    else between the frames.
    """

    def __init__(self, token: bytes, *, keep: int) -> None:
        self._token, self._room = token, keep
        self._rest = bytearray()
        self.foreign = 0

    def add(self, part: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """The frames that are whole now."""
        self._rest += part[: self._room]
        self._room = max(0, self._room - len(part))
        frames = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def close(self) -> None:
        """Nothing more will come.  A last frame that breaks off is not foreign."""
        if not self._rest.startswith(self._token):
            self.foreign += len(self._rest)
        self._rest.clear()

    def _next(self) -> tuple[dict[str, Any], bytes] | None:
        found = self._rest.find(self._token)
        if found < 0:  # the end may be the beginning of a token
            self._drop(len(self._rest) - len(self._token) + 1)
            return None
        self._drop(found)
        head = len(self._token) + LENGTHS.size
        if len(self._rest) < head:
            return None
        text, blob = LENGTHS.unpack_from(self._rest, len(self._token))
        body = head + text
        if len(self._rest) < body + blob:
            return None
        frame = loads(self._rest[head:body]), bytes(self._rest[body : body + blob])
        del self._rest[: body + blob]
        return frame

    def _drop(self, foreign: int) -> None:
        if foreign > 0:
            self.foreign += foreign
            del self._rest[:foreign]
