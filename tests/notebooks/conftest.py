"""The notebooks, as stored and as executed. The site's build executes them; its record is read.

A test module says which notebook it is about: ``NOTEBOOK = "multi_GPU"``.
"""

import sys
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS_PER_CELL = 120


@pytest.fixture(scope="module")
def notebook_name(request):
    return request.module.NOTEBOOK


@pytest.fixture(scope="module")
def stored(notebook_name):
    """The notebook as it is in the repository."""
    return nbformat.read(ROOT / "notebooks" / f"{notebook_name}.ipynb", as_version=4)


@pytest.fixture(scope="module")
def cells(notebook_name, stored):
    """What each code cell of the executed notebook printed and drew, by the id of the cell.

    The record of the site's build serves while it is up to date; else the notebook runs here, once.
    """
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    from course import execution

    notebook = execution.executed(
        deepcopy(stored),
        record=ROOT / "docs" / "_recorded" / f"notebooks--{notebook_name}.ipynb",
        folder=ROOT / "notebooks",
        seconds_per_cell=SECONDS_PER_CELL,
    )
    return {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}


@pytest.fixture(scope="module")
def printed(cells):
    """A function: the text that a cell printed, and the text form of what it drew."""

    def of(cell_id):
        outputs = cells[cell_id].outputs
        streams = [output.text for output in outputs if output.output_type == "stream"]
        drawn = [output.data["text/plain"] for output in outputs if "data" in output]
        return "".join(streams + drawn)

    return of
