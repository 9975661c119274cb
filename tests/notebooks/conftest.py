"""The notebooks, as stored and as recorded. ``test_fresh_runs`` of the site runs them.

A test module says which notebook it is about: ``NOTEBOOK = "multi_GPU"``.
"""

import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def notebook_name(request):
    return request.module.NOTEBOOK


@pytest.fixture(scope="module")
def stored(notebook_name):
    """The notebook as it is in the repository."""
    return nbformat.read(ROOT / "notebooks" / f"{notebook_name}.ipynb", as_version=4)


@pytest.fixture(scope="module")
def cells(notebook_name, stored):
    """Each code cell with what it printed and drew when it was recorded, by the id of the cell."""
    record = nbformat.read(
        ROOT / "docs/records" / f"notebooks--{notebook_name}.ipynb", as_version=4
    )
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    stale = f"make record notebooks/{notebook_name}"
    assert [c.source for c in record.cells] == [c.source for c in code], stale
    return {cell.id: ran for cell, ran in zip(code, record.cells, strict=True)}


@pytest.fixture(scope="module")
def printed(cells):
    """A function: the text that a cell printed, and the text form of what it drew."""

    def of(cell_id):
        outputs = cells[cell_id].outputs
        streams = [output.text for output in outputs if output.output_type == "stream"]
        drawn = [output.data["text/plain"] for output in outputs if "data" in output]
        return "".join(streams + drawn)

    return of


def numbers(text):
    """All numbers of a text."""
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


def links(text):
    """The arrows of a traffic picture in letters: {(source, target): "768 B"}."""
    found = re.findall(r"(\S+(?: \d)?) ──▶ (\S+(?: \d)?) +([\d,.]+ \S+)", text)
    return {(source, target): amount for source, target, amount in found}
