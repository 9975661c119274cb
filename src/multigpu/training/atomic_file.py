"""Files that are whole at every moment, whenever the process that writes them is killed."""

from __future__ import annotations

import os
from pathlib import Path

LEFTOVERS = ".*.partial"  # what a killed writer leaves in the folder


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Write `content` to `path` so that at every moment the old file or the new one is there.

    Raises OSError; then the old file is still there, and nothing else is left.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # else the name may reach the disk before the content
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name, too
    finally:
        os.close(folder)
