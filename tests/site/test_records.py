"""Records: what a build takes from them, what it runs again, and what makes them stale."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from course import execution, records  # noqa: E402 (found through sys.path)


def notebook(*sources: str, values: tuple[str, ...] = ()) -> nbformat.NotebookNode:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    cells += [nbformat.v4.new_code_cell(v, metadata={"tags": [records.VALUE]}) for v in values]
    return nbformat.v4.new_notebook(cells=cells)


def printed(made: nbformat.NotebookNode) -> list[str]:
    return ["".join(output.text for output in cell.outputs) for cell in made.cells]


class Kernel:
    """Stands in for one: each cell prints its source and the number of the run."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, made: nbformat.NotebookNode, **_: Any) -> None:
        self.runs += 1
        for cell in made.cells:
            text = f"{cell.source}, run {self.runs}"
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    stand_in = Kernel()
    monkeypatch.setattr(execution, "run", stand_in)
    monkeypatch.setattr(records, "load_here", lambda seconds=0: 0.1)
    return stand_in


@pytest.fixture
def fill(tmp_path: Path, kernel: Kernel) -> Any:
    """``fill(notebook)``: what a build puts into it; ``record=True``: and records it."""

    def filled(made: nbformat.NotebookNode, *, record: bool = False) -> dict[str, Any]:
        config = SimpleNamespace(course_record="quiet" if record else "", course_seconds_per_cell=1)
        app = SimpleNamespace(srcdir=str(tmp_path / "docs"), config=config)
        return records.outputs(app, made, "lessons/a", tmp_path)

    return filled


def test_a_build_runs_nothing_that_was_recorded(fill: Any, kernel: Kernel) -> None:
    fill(notebook("a", "b"), record=True)
    fresh = notebook("a", "b")
    said = fill(fresh)
    assert kernel.runs == 1
    assert printed(fresh) == ["a, run 1", "b, run 1"]
    assert "again" not in said


def test_from_the_first_changed_cell_on_a_page_runs_again(fill: Any, kernel: Kernel) -> None:
    fill(notebook("a", "b", "c"), record=True)
    fresh = notebook("a", "B", "c")
    said = fill(fresh)
    assert printed(fresh) == ["a, run 1", "B, run 2", "c, run 2"]
    assert (said["again"]["cells"], said["again"]["of"]) == (2, 3)
    fill(notebook("a", "B", "c"))
    assert kernel.runs == 2, "the next build has it already"
    fill(notebook("a", "b", "c"))
    assert kernel.runs == 2, "and the record is what it was"


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (("a", "c"), ["a, run 1", "c, run 2"]),  # b is gone, and c may have needed it
        (("a", "b"), ["a, run 1", "b, run 1"]),
        (("a", "b", "c", "d"), ["a, run 1", "b, run 1", "c, run 1", "d, run 2"]),
    ],
)
def test_cells_that_come_and_go(fill: Any, cells: tuple[str, ...], expected: list[str]) -> None:
    fill(notebook("a", "b", "c"), record=True)
    fresh = notebook(*cells)
    fill(fresh)
    assert printed(fresh) == expected


def test_a_new_value_in_the_text_leaves_the_other_values_alone(fill: Any) -> None:
    fill(notebook("a", values=("x", "y")), record=True)
    fresh = notebook("a", values=("y", "z", "x"))
    fill(fresh)
    assert printed(fresh) == ["a, run 1", "y, run 1", "z, run 2", "x, run 1"]


def test_a_file_that_a_cell_names_counts(fill: Any, tmp_path: Path) -> None:
    page = 'table = data / "table.csv"', 'run("docs/scripts/ddp.py")'
    scripts, tables = (tmp_path / "docs" / name for name in ("scripts", "reference"))
    for path in (scripts / "ddp.py", scripts / "dp.py", tables / "one" / "table.csv"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    fill(notebook(*page), record=True)
    (scripts / "dp.py").write_text("2")
    assert "again" not in fill(notebook(*page))
    for path in (scripts / "ddp.py", tables / "one" / "table.csv"):
        path.write_text("2")
        assert "again" in fill(notebook(*page)), path
        path.write_text("1")
        assert "again" not in fill(notebook(*page)), path


def test_the_foot_warns_of_times_of_a_busy_machine(
    fill: Any, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = fill(notebook("a", "b"), record=True)
    assert "busy:" not in records.foot(said)
    monkeypatch.setattr(records, "load_here", lambda seconds=0: 1.7)
    last = records.foot(fill(notebook("a", "c")))
    assert last.index("recorded on") < last.index("ran again") < last.index("busy:")
    assert "recorded on" not in records.foot(fill(notebook("c")))


def test_a_tag_that_decides_about_outputs_makes_a_record_stale(fill: Any, kernel: Kernel) -> None:
    tagged = notebook("a", "b")
    tagged.cells[1].metadata["tags"] = ["hide-output", "hide-code"]
    fill(tagged, record=True)
    fresh = notebook("a", "b")
    assert fill(fresh)["again"]["cells"] == 1
    assert printed(fresh) == ["a, run 1", "b, run 2"]
    moved = notebook("a", "b")
    moved.cells[1].metadata["tags"] = ["hide-output"]  # whether its code is shown does not matter
    assert "again" not in fill(moved)


def test_a_quiet_cell_runs_only_when_it_is_recorded(tmp_path: Path) -> None:
    made = notebook("print('times')")
    made.cells[0].metadata["tags"] = ["quiet"]
    execution.run(made, root=tmp_path, folder=tmp_path, seconds_per_cell=60)
    assert printed(made) == [""]
    execution.run(made, root=tmp_path, folder=tmp_path, seconds_per_cell=60, quiet=True)
    assert printed(made) == ["times\n"]


def test_a_busy_machine_is_refused(
    fill: Any, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "load_here", lambda seconds=0: 1.7)
    with pytest.raises(records.MachineIsBusy, match=r"1\.7 .*--anyway"):
        fill(notebook("a"), record=True)
    assert kernel.runs == 0


def test_a_measurement_is_written_line_by_line_on_a_quiet_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "measurements")
    import writer

    def rows() -> Iterator[dict[str, Any]]:
        yield {"mode": "ddp", "ms": 3}
        assert table.read_text().endswith("ddp,3\n")  # what is there stays if the next one fails
        yield {"mode": "dp", "ms": 4}

    table = tmp_path / "reference" / "a" / "b.csv"
    table.parents[1].mkdir()
    monkeypatch.setattr(writer, "DOCS", tmp_path)
    monkeypatch.setattr(records, "load_here", lambda seconds=0: 1.7)
    monkeypatch.setattr(sys, "argv", ["b.py"])
    with pytest.raises(SystemExit, match=r"1\.7 .*--anyway"):
        writer.write("a/b.csv", "two ranks", rows())
    assert not table.exists()
    monkeypatch.setattr(sys, "argv", ["b.py", "--anyway"])
    writer.write("a/b.csv", "two ranks", rows())
    head, *lines = table.read_text().splitlines()
    assert re.match(r"# \d+-\d+-\d+, .*torch .*load 1\.7 before it began; two ranks$", head)
    assert lines == ["mode,ms", "ddp,3", "dp,4"]


def test_a_failure_is_not_taken_for_a_result(
    fill: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(made: Any, **_: Any) -> None:
        raise execution.CellFailed(0, "NameError")

    monkeypatch.setattr(execution, "run", fails)
    with pytest.raises(execution.CellFailed):
        fill(notebook("wrong"))
    assert not list(tmp_path.rglob("*.ipynb"))


def test_every_page_is_shown_from_its_record(built_site: Path) -> None:
    stale = []
    for path in sorted((ROOT / records.SHOWN).glob("*.ipynb")):
        if "again" in nbformat.read(path, as_version=4).metadata.course:
            stale.append(path.stem.replace("--", "/"))
    assert not stale, f"make record {' '.join(stale)}"


def test_no_record_is_of_a_busy_machine_or_of_a_page_that_is_gone(built_site: Path) -> None:
    shown = {path.name for path in (ROOT / records.SHOWN).iterdir()}
    for path in sorted((ROOT / records.PLACE).glob("*.ipynb")):
        assert path.name in shown, f"no page shows {path.name}"
        assert not records.load(path).metadata.course.get("busy"), path.name
