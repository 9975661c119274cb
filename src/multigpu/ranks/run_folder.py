"""The folder of a run: where it is made, and how it is found again when its owners were killed.

A run inside a rank has its folder in that of the outer run: who removes that one removes both.
"""

import os
import shutil
import tempfile
from pathlib import Path

INSIDE = "MULTIGPU_RUN_FOLDER"  # in the environment of ranks and of the servers that they start


def make_run_folder(mark: str) -> str:
    """A new folder for a run of the server with this mark."""
    return tempfile.mkdtemp(prefix=_prefix(mark), dir=_parent())


def enter_run_folder(folder: str) -> None:
    """Have the runs that this process and its children start make their folders in this one."""
    os.environ[INSIDE] = folder


def server_environment() -> dict[str, str]:
    """What lets a server that we start make its folders where we look for them."""
    return {INSIDE: _parent()}


def remove_run_folders(mark: str) -> None:
    """Remove what runs of the server with this mark have left."""
    for folder in Path(_parent()).glob(f"{_prefix(mark)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _parent() -> str:
    outer = os.environ.get(INSIDE, "")
    return outer if os.path.isdir(outer) else tempfile.gettempdir()


def _prefix(mark: str) -> str:
    return f"multigpu-ranks-{mark.rpartition('.')[2]}-"
