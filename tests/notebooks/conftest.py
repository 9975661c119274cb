"""The notebooks, as stored and as executed. The site's build executes them; its record is read."""

import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS_PER_CELL = 120


@pytest.fixture(scope="session")
def stored():
    """The notebook as it is in the repository."""
    return nbformat.read(ROOT / "notebooks" / "multi_GPU.ipynb", as_version=4)


@pytest.fixture(scope="session")
def cells():
    """What each code cell of the executed notebook printed and drew, by the id of the cell.

    The record of the site's build serves while it is up to date; else the notebook runs here, once.
    """
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    from course import execution

    notebook = execution.executed(
        nbformat.read(ROOT / "notebooks" / "multi_GPU.ipynb", as_version=4),
        record=ROOT / "docs" / "_recorded" / "notebooks--multi_GPU.ipynb",
        folder=ROOT / "notebooks",
        seconds_per_cell=SECONDS_PER_CELL,
    )
    return {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}


@pytest.fixture(scope="session")
def printed(cells):
    """A function: the text that a cell printed, and the text form of what it drew."""

    def of(cell_id):
        outputs = cells[cell_id].outputs
        streams = [output.text for output in outputs if output.output_type == "stream"]
        drawn = [output.data["text/plain"] for output in outputs if "data" in output]
        return "".join(streams + drawn)

    return of
