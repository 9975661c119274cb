"""Replace a file in one step: at every moment there is the whole old file or the whole new one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path

import psutil


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write, which takes the place of `path` when the block ends without an error.

    A writer that is killed leaves `.NAME.PROCESS.partial` beside it; the next one removes that.
    """
    for left in path.parent.glob(f".{escape(path.name)}.*.partial"):
        process = left.suffixes[-2][1:]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            left.unlink(missing_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
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
