"""Frames on a pipe that a learner's code can write to: a JSON header and some bytes.

Every frame begins with a token that the learner's code does not know, so anything else that is
written into the pipe is recognized as foreign. It is never unpickled.
"""

import os
import struct
import threading
from collections.abc import Callable
from json import dumps, loads  # bound here: a learner's patch of json changes nothing
from typing import Any

LENGTHS = struct.Struct(">QQ")
Write = Callable[..., None]  # takes a header, and some bytes


def pack(header: dict[str, Any], blob: bytes = b"") -> bytes:
    """One frame, without its token."""
    text = dumps(header).encode()
    return LENGTHS.pack(len(text), len(blob)) + text + blob


class FrameWriter:
    """A worker's end of the pipe to its supervisor."""

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
    """Extracts the frames of a `FrameWriter` from the data that arrive through a pipe.

    Beyond ``keep`` bytes the rest is ignored.
    """

    def __init__(self, token: bytes, *, keep: int) -> None:
        self._token, self._room = token, keep
        self._rest = bytearray()
        self._foreign = 0

    def add(self, part: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """The frames that are complete now."""
        self._rest += part[: self._room]
        self._room = max(0, self._room - len(part))
        frames = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def foreign(self) -> int:
        """Foreign bytes between the frames; the last frame may be incomplete."""
        return self._foreign + (0 if self._rest.startswith(self._token) else len(self._rest))

    def _next(self) -> tuple[dict[str, Any], bytes] | None:
        found = self._rest.find(self._token)
        # Without a token all is foreign; but the end may be the beginning of one.
        drop = found if found >= 0 else max(0, len(self._rest) - len(self._token) + 1)
        self._foreign += drop
        del self._rest[:drop]
        head = len(self._token) + LENGTHS.size
        if found < 0 or len(self._rest) < head:
            return None
        text, blob = LENGTHS.unpack_from(self._rest, len(self._token))
        body = head + text
        if len(self._rest) < body + blob:
            return None
        frame = loads(self._rest[head:body].decode()), bytes(self._rest[body : body + blob])
        del self._rest[: body + blob]
        return frame
