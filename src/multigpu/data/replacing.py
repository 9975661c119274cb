"""Replace a file in one step: at every moment there is the whole old file or the whole new one."""

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path

import psutil


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write, which takes the place of `path` when the block ends without an error.

    A writer that is killed leaves `.NAME.HOST.PROCESS.partial` beside it; the next one on this host
    removes that.
    """
    own = f".{path.name}.{socket.gethostname()}."
    for left in path.parent.glob(f"{escape(own)}*.partial"):
        process = left.name.removeprefix(own).removesuffix(".partial")
        with contextlib.suppress(OSError, OverflowError, ValueError):  # whatever has such a name
            if not psutil.pid_exists(int(process)):
                left.unlink()
    partial = path.with_name(f"{own}{os.getpid()}.partial")
    try:
        yield partial
        sync(partial)  # else the name may reach the disk before the content
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)  # the name, too


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Write `content` to `path`.  Raises OSError; then the old file still exists."""
    with replacing(path) as partial:
        partial.write_bytes(content)


def sync(path: Path) -> None:
    """Return when a file or a folder has reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
