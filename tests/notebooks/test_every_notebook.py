"""What holds for each worked notebook: stored clean, and it runs from top to bottom in peace."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
VIRTUAL = re.compile(r".*\bvirtual\b.*\n")  # what `gpus` says of itself


@pytest.fixture(scope="module", params=sorted(path.stem for path in FOLDER.glob("*.ipynb")))
def notebook_name(request):
    return request.param


def test_it_is_stored_without_outputs(stored):
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert code
    assert [cell.id for cell in code if cell.outputs or cell.execution_count] == []
    assert stored.metadata.kernelspec.name == "python3"


def test_every_cell_runs_without_error_or_warning(cells):
    unhappy = {
        name: output
        for name, cell in cells.items()
        for output in cell.outputs
        if output.output_type == "error"
        or (output.get("name") == "stderr" and not VIRTUAL.fullmatch(output.text))
    }
    assert unhappy == {}


def test_what_cells_print_is_plain_text(cells, printed):
    assert [name for name in cells if "\x1b" in printed(name)] == []


def test_a_cell_says_whose_exercise_it_uses_and_how_its_check_ended(cells, printed):
    for name, cell in cells.items():
        for exercise in re.findall(r'\buse\(\s*"\w+\.(\w+)"', cell.source):
            assert re.search(rf"^{exercise}: (yours|the reference)\b", printed(name), re.MULTILINE)
        for exercise in re.findall(r'\bcheck\("([\w.]+)"\)', cell.source):
            assert re.search(rf"{exercise}: (not )?passed", printed(name))
