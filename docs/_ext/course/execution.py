"""Run the cells of a page or a notebook in a fresh kernel."""

import os
from pathlib import Path

from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

ROOT = Path(__file__).resolve().parents[3]
QUIET = "quiet"  # the tag of a cell that runs only where nothing else uses the machine
HIDDEN = "hide-output"  # the tag of a cell whose outputs no reader sees: only its error is kept
TEXTS = {"text", "evalue", "text/plain", "text/html", "image/svg+xml"}


class CellFailed(Exception):
    """A cell raised, hung or lost its kernel; ``index`` is its place among the notebook's cells."""

    def __init__(self, index, message):
        super().__init__(message)
        self.index = index


def run(
    notebook,
    *,
    root,
    folder,
    seconds_per_cell,
    quiet=False,
    rough=False,
    manager=AsyncKernelManager,
):
    """Run all cells in place; those tagged ``raises-exception`` may raise.

    Args:
        notebook: an nbformat notebook.
        root: the top folder of the course.
        folder: the kernel's working folder.
        seconds_per_cell: a cell that takes longer is stopped.
        quiet: whether cells tagged ``quiet`` run, too.
        rough: whether the course's measurements repeat as little as they can.
        manager: what starts the kernel.

    Raises:
        CellFailed: with the index of the cell and the last lines of its error.
    """
    started = [0]  # the last one is what the kernel is at: the only way to name a cell that hung
    folder.mkdir(parents=True, exist_ok=True)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        kernel_manager_class=manager,
        timeout=seconds_per_cell,
        startup_timeout=300,  # a busy machine takes its time to import
        record_timing=False,
        skip_cells_with_tag="" if quiet else QUIET,
        resources={"metadata": {"path": str(folder)}},
        on_cell_start=lambda cell, cell_index: started.append(cell_index),
        extra_arguments=["--IPKernelApp.log_level=ERROR"],  # it warns of its own transport
    )
    try:
        client.execute(env=environment() | ({"MULTIGPU_TIMES": "rough"} if rough else {}))
    except CellExecutionError as failure:
        raise CellFailed(started[-1], f"{failure.ename}: {failure.evalue}") from None
    except CellTimeoutError:
        limit = f"the cell ran for more than {seconds_per_cell} s and was stopped"
        raise CellFailed(started[-1], limit) from None
    except DeadKernelError:
        raise CellFailed(started[-1], "the kernel died during this cell") from None
    for cell in notebook.cells:
        if cell.cell_type == "code":
            clean(cell, root)


def clean(cell, root):
    """Leave out of a cell's outputs what nobody sees, and where on this machine the course is."""
    if HIDDEN in cell.metadata.get("tags", []):
        cell.outputs = [output for output in cell.outputs if output.output_type == "error"]
    for output in cell.outputs:
        for texts in (output, output.get("data", {})):
            for name in TEXTS & set(texts):
                texts[name] = texts[name].replace(f"{root}{os.sep}", "")
        if output.output_type == "error":  # pages show its last line
            output["traceback"] = [f"{output['ename']}: {output['evalue']}"]


def environment():
    """What a kernel inherits: 80 columns and no color, so that output fits the page.

    The pages show the reference answers, whatever the reader has solved so far.
    """
    return {
        **os.environ,
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "PYTHONWARNINGS": "default",
        "MULTIGPU_ANSWERS": "reference",
    }
