"""Run the cells of a page or a notebook in a fresh kernel, and note which files they read."""

import os
from ast import literal_eval
from pathlib import Path

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

ROOT = Path(__file__).resolve().parents[3]
QUIET = "quiet"  # the tag of a cell that runs only where nothing else uses the machine
HIDDEN = "hide-output"  # the tag of a cell whose outputs no reader sees: only its error is kept
# Code decides whether a record is right, not whether it is stale: `make test-all` compares.
NOT_READ = ("src", "solutions", "exercises", "docs/_build", "docs/records", "notebooks", ".venv")

TEXTS = {"text", "evalue", "text/plain", "text/html", "image/svg+xml"}

# Goes through Python's own list of events; what `import` opens is code, too. Not seen is what other
# processes read, ranks among them, and what a library reads by itself, as pyarrow does: a page that
# shows such a file names it in a cell.
WATCH = """
import os as _os, sys as _sys
_opened = set()
def _note(event, arguments, _frame=_sys._getframe, _noted=_opened.add, _name=_os.fsdecode):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        if not _frame(1).f_code.co_filename.startswith("<frozen importlib"):
            _noted(_name(arguments[0]))
_sys.addaudithook(_note)
del _note
"""
# An expression, as a page may give `print` another meaning, and one text, as lists are cut short.
OPENED = r"'\n'.join(_opened)"


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

    Returns:
        The files below ``root`` that the cells have read or named, as sorted relative paths.

    Raises:
        CellFailed: with the index of the cell and the last lines of its error.
    """
    watched = nbformat.v4.new_notebook()
    watched.cells = [
        nbformat.v4.new_code_cell(WATCH),
        *notebook.cells,
        nbformat.v4.new_code_cell(OPENED),
    ]
    started = [0]  # the last one is what the kernel is at: the only way to name a cell that hung
    folder.mkdir(parents=True, exist_ok=True)
    client = NotebookClient(
        watched,
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
        raise CellFailed(started[-1] - 1, f"{failure.ename}: {failure.evalue}") from None
    except CellTimeoutError:
        limit = f"the cell ran for more than {seconds_per_cell} s and was stopped"
        raise CellFailed(started[-1] - 1, limit) from None
    except DeadKernelError:
        raise CellFailed(started[-1] - 1, "the kernel died during this cell") from None
    for cell in notebook.cells:
        if cell.cell_type == "code":
            clean(cell, root)
    (opened,) = [literal_eval(out.data["text/plain"]) for out in watched.cells[-1].outputs]
    return sorted(read_below(root, folder, opened.splitlines()) | named_in(notebook, root))


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


def read_below(root, folder, opened):
    """Which of the opened files belong to the course and are no code of it."""
    paths = (Path(os.path.abspath(folder / name)) for name in opened)
    inside = {path.relative_to(root) for path in paths if path.is_relative_to(root)}
    return {
        str(path)
        for path in inside
        if (root / path).is_file()
        and "__pycache__" not in path.parts
        and not any(path.is_relative_to(place) for place in NOT_READ)
    }


def named_in(notebook, root):
    """Files that cells name by their path from the top folder: scripts that they start."""
    words = {
        word.strip("\"'`(),;:")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for word in cell.source.replace('"', " ").split()
    }
    named = {word for word in words if "/" in word and not word.startswith(("/", "."))}
    return {word for word in named if not word.startswith(NOT_READ) and (root / word).is_file()}


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
