"""Run notebooks, once: in a fresh kernel, with a time limit, remembered by the content they had.

Pages with ``.. run::`` cells and the notebooks of ``notebooks/`` both go through here. What a run
gave is kept in ``docs/_recorded/`` with a key: the hash of the cells, of ``src/`` and
``solutions/`` and of the versions of Python and torch. While the key stays, nothing runs again.
"""

import hashlib
import os
import platform
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

ROOT = Path(__file__).resolve().parents[3]
CODE = ("src/multigpu", "solutions")


class CellFailed(Exception):
    """A cell raised, hung or lost its kernel; ``index`` is its place among the code cells."""

    def __init__(self, index, message):
        super().__init__(message)
        self.index = index


@dataclass
class _Progress:
    """Which cell the kernel is at: the only way to name the one that hung."""

    cell: int = 0

    def note(self, cell, cell_index):
        self.cell = cell_index


@cache
def state_of_the_code():
    """One hash over everything a cell's result may depend on besides its own source."""
    digest = hashlib.sha256(f"{platform.python_version()} {version('torch')}".encode())
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(str(path.relative_to(ROOT)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def key_of(notebook):
    digest = hashlib.sha256(state_of_the_code().encode())
    for cell in notebook.cells:
        digest.update(f"{cell.cell_type} {cell.metadata.get('tags')}\0{cell.source}\0".encode())
    return digest.hexdigest()


def record_of(app, name):
    """Where a build keeps what the page or notebook ``name`` gave."""
    return Path(app.srcdir) / "_recorded" / f"{name.replace('/', '--')}.ipynb"


def executed(notebook, *, record, folder, seconds_per_cell):
    """``notebook`` with its outputs, from ``record`` where the key still fits.

    Args:
        notebook: an nbformat notebook; cells tagged ``raises-exception`` may raise.
        record: the file that keeps the outputs.
        folder: the kernel's working folder.
        seconds_per_cell: a cell that takes longer is stopped.

    Raises:
        CellFailed: with the index of the cell and the last lines of its error.
    """
    key = key_of(notebook)
    if record.exists():
        known = nbformat.read(record, as_version=4)
        if known.metadata.get("course_key") == key:
            return known
    run(notebook, folder=folder, seconds_per_cell=seconds_per_cell)
    notebook.metadata["course_key"] = key
    record.parent.mkdir(exist_ok=True)
    # Written under another name first: a build that is stopped leaves no half record behind.
    unfinished = record.with_suffix(f".{os.getpid()}")
    nbformat.write(notebook, unfinished)
    unfinished.replace(record)
    return notebook


def run(notebook, *, folder, seconds_per_cell):
    progress = _Progress()
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=seconds_per_cell,
        startup_timeout=300,  # a busy machine takes its time to import
        resources={"metadata": {"path": str(folder)}},
        on_cell_start=progress.note,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],  # it warns of its own transport
    )
    try:
        client.execute(env=environment())
    except CellExecutionError as failure:
        raise CellFailed(progress.cell, f"{failure.ename}: {failure.evalue}") from None
    except CellTimeoutError:
        limit = f"the cell ran for more than {seconds_per_cell} s and was stopped"
        raise CellFailed(progress.cell, limit) from None
    except DeadKernelError:
        raise CellFailed(progress.cell, "the kernel died during this cell") from None


def environment():
    """What a kernel inherits: 80 columns and no colour, so that output fits the page.

    The pages show the reference answers, whatever the reader has solved so far.
    """
    return {
        **os.environ,
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "PYTHONWARNINGS": "default",
        "MULTIGPU_ANSWERS": "reference",
    }
